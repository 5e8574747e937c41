// Small objects: programs written from the descriptions of mimalloc-bench's, each with its own pattern of sizes,
// lifetimes and threads. Each prints the seconds of CPU that it took.
#include "measure.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4 };

static void use(void *p) { __asm__ volatile("" : : "r"(p) : "memory"); }

static void in_threads(void *(*work)(void *), int count) {
  pthread_t all[16];
  for (intptr_t i = 0; i < count; i++) pthread_create(&all[i], NULL, work, (void *)(i + 1));
  for (int i = 0; i < count; i++) pthread_join(all[i], NULL);
}

// cfrac: numbers of a few words that live as long as one operation.
static void cfrac(void) {
  void *last[8] = {0};
  uint64_t seed = 1;
  for (int i = 0; i < 6000000; i++) {
    int at = i % 8;
    free(last[at]);
    size_t size = 8 + next_random(&seed) % 56;
    last[at] = malloc(size);
    memset(last[at], 1, 8);
  }
  for (int i = 0; i < 8; i++) free(last[i]);
}

// alloc-test: random slots, sizes by a power law.
static void *alloc_test_work(void *argument) {
  enum { SLOTS = 20000 };
  void **slots = calloc(SLOTS, sizeof *slots);
  uint64_t seed = (uintptr_t)argument;
  for (int i = 0; i < 1500000; i++) {
    size_t at = next_random(&seed) % SLOTS;
    free(slots[at]);
    size_t size = ((size_t)16 << next_random(&seed) % 7) + next_random(&seed) % 32;
    slots[at] = malloc(size);
    memset(slots[at], 1, 16);
  }
  for (int i = 0; i < SLOTS; i++) free(slots[i]);
  free(slots);
  return NULL;
}
static void alloc_test1(void) { alloc_test_work((void *)1); }
static void alloc_testN(void) { in_threads(alloc_test_work, THREADS); }

// larson: threads replace objects of one another, then hand the whole set to a new thread.
static void *larson_work(void *argument) {
  enum { SLOTS = 1000 };
  static void *sets[THREADS + 1][SLOTS];
  intptr_t number = (intptr_t)argument;
  void **slots = sets[number % (THREADS + 1)];
  uint64_t seed = (uint64_t)number;
  for (int i = 0; i < 150000; i++) {
    size_t at = next_random(&seed) % SLOTS;
    free(slots[at]);
    slots[at] = malloc(8 + next_random(&seed) % 1000);
    memset(slots[at], 1, 8);
  }
  return NULL;
}
static void larson(void) {
  for (int round = 0; round < 10; round++) in_threads(larson_work, THREADS);
}

// sh6: batches of many sizes, freed in another order than allocated.
static void *sh6_work(void *argument) {
  enum { BATCH = 4096 };
  void **batch = malloc(BATCH * sizeof *batch);
  uint64_t seed = (uintptr_t)argument;
  for (int round = 0; round < 250; round++) {
    for (int i = 0; i < BATCH; i++) {
      batch[i] = malloc(1 + next_random(&seed) % (i % 50 ? 200 : 4000));
      memset(batch[i], 1, 1);
    }
    for (int i = 0; i < BATCH; i += 2) free(batch[i]);
    for (int i = BATCH - 1; i > 0; i -= 2) free(batch[i]);
  }
  free(batch);
  return NULL;
}
static void sh6(void) { sh6_work((void *)1); }
static void sh8(void) { in_threads(sh6_work, THREADS); }

// xmalloc: some threads allocate, others free.
static _Atomic(void *) queue[4096];
static void *xmalloc_work(void *argument) {
  uint64_t seed = (uintptr_t)argument;
  for (int i = 0; i < 1200000; i++) {
    size_t at = next_random(&seed) % 4096;
    void *p = NULL;
    if ((uintptr_t)argument % 2) {
      p = malloc(16 + next_random(&seed) % 500);
      memset(p, 1, 16);
    }
    free(atomic_exchange(&queue[at], p));
  }
  return NULL;
}
static void xmalloc(void) {
  in_threads(xmalloc_work, THREADS);
  for (int i = 0; i < 4096; i++) free(queue[i]);
}

// mstress: trees of objects that are kept, moved between threads and dropped at random.
static void *mstress_work(void *argument) {
  static _Atomic(void *) transfer[1000];
  enum { SLOTS = 5000 };
  void **slots = calloc(SLOTS, sizeof *slots);
  uint64_t seed = (uintptr_t)argument * 43;
  for (int i = 0; i < 600000; i++) {
    size_t at = next_random(&seed) % SLOTS;
    if (next_random(&seed) % 4 == 0) {
      slots[at] = atomic_exchange(&transfer[next_random(&seed) % 1000], slots[at]);
    } else {
      free(slots[at]);
      size_t size = next_random(&seed) % 100 == 0 ? next_random(&seed) % 60000 : 8 + next_random(&seed) % 120;
      slots[at] = malloc(size);
      if (size) memset(slots[at], 1, size < 64 ? size : 64);
    }
  }
  for (int i = 0; i < SLOTS; i++) free(slots[i]);
  free(slots);
  if ((uintptr_t)argument == 1)
    for (int i = 0; i < 1000; i++) use(transfer[i]);
  return NULL;
}
static void mstress(void) { in_threads(mstress_work, THREADS); }

// rptest: a wide range of sizes, blocks handed from thread to thread.
static void *rptest_work(void *argument) {
  enum { SLOTS = 2000 };
  void **slots = calloc(SLOTS, sizeof *slots);
  uint64_t seed = (uintptr_t)argument * 7;
  for (int i = 0; i < 120000; i++) {
    size_t at = next_random(&seed) % SLOTS;
    free(slots[at]);
    size_t size = 16 + next_random(&seed) % 16000;
    slots[at] = malloc(size);
    memset(slots[at], 1, size / 4);
  }
  for (int i = 0; i < SLOTS; i++) free(slots[i]);
  free(slots);
  return NULL;
}
static void rptest(void) { in_threads(rptest_work, THREADS); }

// glibc-simple: one size, many at once.
static void *simple_work(void *argument) {
  void *all[400];
  for (int round = 0; round < 15000; round++) {
    for (int i = 0; i < 400; i++) use(all[i] = malloc(64));
    for (int i = 0; i < 400; i++) free(all[i]);
  }
  return argument;
}
static void glibc_simple(void) { simple_work(NULL); }
static void glibc_thread(void) { in_threads(simple_work, THREADS); }

// strings: what a tokenizer does: lists of short strings that grow by realloc, built and dropped by the thousand.
static void *strings_work(void *argument) {
  uint64_t seed = (uintptr_t)argument;
  for (int batch = 0; batch < 60; batch++) {
    char **words = NULL;
    size_t room = 0;
    for (size_t i = 0; i < 20000; i++) {
      if (i == room) words = realloc(words, (room = room ? room * 2 : 16) * sizeof *words);
      size_t length = 3 + next_random(&seed) % 12;
      words[i] = malloc(length + 1);
      memset(words[i], 'a', length);
    }
    for (size_t i = 0; i < 20000; i++) free(words[i]);
    free(words);
  }
  return NULL;
}
static void strings(void) { in_threads(strings_work, THREADS); }

static const struct {
  const char *name;
  void (*run)(void);
} PROGRAMS[] = {{"cfrac", cfrac}, {"alloc-test1", alloc_test1}, {"alloc-testN", alloc_testN}, {"larson", larson},
                {"sh6", sh6}, {"sh8", sh8}, {"xmalloc", xmalloc}, {"mstress", mstress}, {"rptest", rptest},
                {"glibc-simple", glibc_simple}, {"glibc-thread", glibc_thread}, {"strings", strings}};

int main(int argc, char **argv) {
  for (size_t i = 0; i < sizeof PROGRAMS / sizeof *PROGRAMS; i++)
    if (argc > 1 && !strcmp(argv[1], PROGRAMS[i].name)) {
      // A second word: how often.
      for (int rounds = argc > 2 ? atoi(argv[2]) : 1; rounds > 0; rounds--) PROGRAMS[i].run();
      tell(cpu_seconds());
      return 0;
    }
  fprintf(stderr, "no program is called %s\n", argc > 1 ? argv[1] : "");
  return 2;
}
