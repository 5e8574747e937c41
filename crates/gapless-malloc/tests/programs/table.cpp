// All entry points x sizes x alignments in one state of the process. Each call runs in a child of its own, where its
// argument asks for it, so that nothing was allocated before. Prints a line for each call: its name, its size, and what
// came out: "block", "null" with the error's number, "threw", or what is wrong with the block. What the C library's
// allocator says is right.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

typedef unsigned char byte;
static const size_t KiB = 1 << 10, MiB = 1 << 20, NONE = 0;
static volatile size_t one = 1;

struct Answer {
  char what[40];
};

static void say(Answer *a, const char *what, int number) { snprintf(a->what, sizeof a->what, what, number); }

// Whether all of a block can be used, as far as it is small enough to be touched.
static void judge(Answer *a, void *block, size_t size, size_t align, int error = -1) {
  if (error < 0) error = errno;
  if (!block) return say(a, "null %d", error);
  // A call that succeeds leaves the number of the error as it is.
  if (errno) return free(block), say(a, "errno %d", errno);
  if ((uintptr_t)block % (align ? align : 1)) return say(a, "misaligned", 0);
  if (malloc_usable_size(block) < size) return free(block), say(a, "too short", 0);
  byte *p = (byte *)block;
  if (size && size <= 64 * MiB) {
    p[0] = p[size / 2] = p[size - 1] = 7;
    if (p[0] + p[size / 2] + p[size - 1] != 21) return say(a, "lost", 0);
  }
  free(block);
  say(a, "block", 0);
}

typedef void Call(Answer *a, size_t size, size_t align);

static void call_malloc(Answer *a, size_t size, size_t) { judge(a, malloc(size), size, 16); }
static void call_calloc(Answer *a, size_t size, size_t) {
  byte *p = (byte *)calloc(one, size);
  int error = errno;
  if (p && size && size <= 64 * MiB && (p[0] || p[size / 2] || p[size - 1])) return say(a, "dirty", 0);
  judge(a, p, size, 16, error);
}
static void call_calloc_many(Answer *a, size_t size, size_t) { judge(a, calloc(size, one), size, 16); }
static void call_calloc_product(Answer *a, size_t size, size_t) {
  size_t all = size << 3;
  void *p = calloc(size, 8 * one);
  judge(a, p, size >> 61 ? SIZE_MAX : all, 16);
}
static void call_realloc_null(Answer *a, size_t size, size_t) { judge(a, realloc(NULL, size), size, 16); }
static void grow(Answer *a, size_t from, size_t size, bool is_array) {
  byte *p = (byte *)malloc(from);
  if (!p) return say(a, "no block to grow", 0);
  memset(p, 3, from);
  errno = 0;
  byte *q = (byte *)(is_array ? reallocarray(p, size, one) : realloc(p, size));
  int error = errno;
  byte *found = q ? q : p;
  // realloc(p, 0) frees.
  if (size || q) {
    size_t least = q && size < from ? size : from;
    for (size_t i = 0; i < least; i += 511)
      if (found[i] != 3) return say(a, "lost at %d", (int)i);
  }
  if (!q && size) free(p);
  judge(a, q, size, 16, error);
}
static void call_realloc_small(Answer *a, size_t size, size_t) { grow(a, 100, size, false); }
static void call_realloc_middle(Answer *a, size_t size, size_t) { grow(a, 100 * KiB, size, false); }
static void call_realloc_large(Answer *a, size_t size, size_t) { grow(a, 5 * MiB, size, false); }
static void call_reallocarray(Answer *a, size_t size, size_t) { grow(a, 3000, size, true); }
static void call_valloc(Answer *a, size_t size, size_t) { judge(a, valloc(size), size, 4096); }
static void call_pvalloc(Answer *a, size_t size, size_t) { judge(a, pvalloc(size), size, 4096); }
static void call_new(Answer *a, size_t size, size_t) {
  try {
    judge(a, operator new(size), size, 16);
  } catch (std::bad_alloc &) {
    say(a, "threw", 0);
  }
}
static void call_new_array(Answer *a, size_t size, size_t) {
  try {
    judge(a, operator new[](size), size, 16);
  } catch (std::bad_alloc &) {
    say(a, "threw", 0);
  }
}
static void call_new_nothrow(Answer *a, size_t size, size_t) {
  judge(a, operator new(size, std::nothrow), size, 16, ENOMEM);
}
static void call_new_array_nothrow(Answer *a, size_t size, size_t) {
  judge(a, operator new[](size, std::nothrow), size, 16, ENOMEM);
}

static size_t power(size_t align) {
  size_t to = 1;
  while (to && to < align) to <<= 1;
  return to;
}
static void call_aligned_alloc(Answer *a, size_t size, size_t align) {
  void *p = aligned_alloc(align, size);
  judge(a, p, size, power(align));
}
static void call_memalign(Answer *a, size_t size, size_t align) {
  void *p = memalign(align, size);
  judge(a, p, size, power(align));
}
static void call_posix_memalign(Answer *a, size_t size, size_t align) {
  void *p = NULL;
  int result = posix_memalign(&p, align, size);
  judge(a, result ? NULL : p, size, align, result);
}
static void call_new_aligned(Answer *a, size_t size, size_t align) {
  try {
    judge(a, operator new(size, std::align_val_t(align)), size, align);
  } catch (std::bad_alloc &) {
    say(a, "threw", 0);
  }
}
static void call_new_aligned_nothrow(Answer *a, size_t size, size_t align) {
  judge(a, operator new(size, std::align_val_t(align), std::nothrow), size, align, ENOMEM);
}

struct Door {
  const char *name;
  Call *call;
  bool is_aligned;
};
static const Door doors[] = {
    {"malloc", call_malloc, false},
    {"calloc", call_calloc, false},
    {"calloc-many", call_calloc_many, false},
    {"calloc-product", call_calloc_product, false},
    {"realloc-null", call_realloc_null, false},
    {"realloc-small", call_realloc_small, false},
    {"realloc-middle", call_realloc_middle, false},
    {"realloc-large", call_realloc_large, false},
    {"reallocarray", call_reallocarray, false},
    {"valloc", call_valloc, false},
    {"pvalloc", call_pvalloc, false},
    {"new", call_new, false},
    {"new-array", call_new_array, false},
    {"new-nothrow", call_new_nothrow, false},
    {"new-array-nothrow", call_new_array_nothrow, false},
    {"aligned_alloc", call_aligned_alloc, true},
    {"memalign", call_memalign, true},
    {"posix_memalign", call_posix_memalign, true},
    {"new-aligned", call_new_aligned, true},
    {"new-aligned-nothrow", call_new_aligned_nothrow, true},
};

static size_t sizes[1024], few[64], alignments[64];
static int count_sizes, count_few, count_alignments;

static void list() {
  const long around[] = {-65536 - 1, -65536, -16384 - 1, -16384, -4096, -17, -1, 0, 1, 17, 4096, 16384, 16384 + 1, 65536, 65536 + 1};
  for (int p = 0; p < 64; p++)
    for (unsigned i = 0; i < sizeof around / sizeof *around; i++) {
      size_t size = ((size_t)1 << p) + (size_t)around[i];
      bool is_below_zero = around[i] < 0 && (size_t)-around[i] > (size_t)1 << p;
      if (!is_below_zero && (p > 17 || i % 3 == 1 || around[i] * around[i] <= 1)) sizes[count_sizes++] = size;
    }
  for (size_t i = 0; i < 24; i++) sizes[count_sizes++] = SIZE_MAX - (i < 3 ? i : ((size_t)1 << (i - 3)));
  const size_t some[] = {0, 1, 100, 5000, 70000, MiB, 3 * MiB + 5, (size_t)1 << 31, ((size_t)1 << 48) + 16384,
                         SIZE_MAX / 2, SIZE_MAX - 4096, SIZE_MAX};
  for (size_t size : some) few[count_few++] = size;
  for (int p = 0; p < 64; p++)
    if (p < 6 || p > 9) alignments[count_alignments++] = (size_t)1 << p;
}
static const size_t odd[] = {0, 3, 5, 24, 48, 5000, 65537, ((size_t)1 << 40) + 1, ((size_t)1 << 63) + 1, SIZE_MAX};

static Answer *answers;
static int is_each_alone;

static void ask(const Door *door, size_t size, size_t align) {
  memset(answers, 0, sizeof *answers);
  if (is_each_alone) {
    pid_t pid = fork();
    if (!pid) {
      errno = 0;
      door->call(answers, size, align);
      _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (status) say(answers, "died of %d", status);
  } else {
    errno = 0;
    door->call(answers, size, align);
  }
  // Not by a buffer of the C library's that would be allocated.
  char line[160];
  int length = snprintf(line, sizeof line, "%s %zu %zu %s\n", door->name, align, size, answers->what);
  if (write(1, line, (size_t)length) != length) _exit(3);
}

static void *all(void *) {
  for (const Door &door : doors) {
    if (!door.is_aligned) {
      for (int i = 0; i < count_sizes; i += is_each_alone ? 7 : 1) ask(&door, sizes[i], NONE);
      for (int i = 0; i < count_few; i++) ask(&door, few[i], NONE);
      continue;
    }
    for (int s = 0; s < count_few; s += is_each_alone ? 3 : 1) {
      for (int i = 0; i < count_alignments; i++) ask(&door, few[s], alignments[i]);
      for (size_t align : odd) ask(&door, few[s], align);
    }
  }
  return NULL;
}

int main(int argc, char **argv) {
  answers = (Answer *)mmap(NULL, sizeof *answers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  list();
  const char *state = argc > 1 ? argv[1] : "";
  if (!strcmp(state, "fresh")) {
    is_each_alone = 1;
    all(NULL);
  } else if (!strcmp(state, "used")) {
    // Before the first block, after small ones, after the first large one, and after all of these.
    free(malloc(100));
    all(NULL);
    free(malloc(3 * MiB));
    all(NULL);
  } else if (!strcmp(state, "forked")) {
    free(malloc(3 * MiB));
    pid_t pid = fork();
    if (!pid) {
      all(NULL);
      _exit(0);
    }
    waitpid(pid, NULL, 0);
  } else if (!strcmp(state, "thread")) {
    pthread_t thread;
    pthread_create(&thread, NULL, all, NULL);
    pthread_join(thread, NULL);
  } else if (!strcmp(state, "limited")) {
    struct rlimit limit = {(size_t)3 << 30, (size_t)3 << 30};
    if (setrlimit(RLIMIT_AS, &limit)) return 2;
    all(NULL);
  } else {
    return 2;
  }
  return 0;
}
