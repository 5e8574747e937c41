// Random operations against a shadow model: every block is filled with a pattern that follows from its number, and is
// checked before each change. Blocks wander between threads, and threads die while others hold their blocks.
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED = 512, OWN = 64 };

struct block {
  unsigned char *start;
  size_t size;
  uint64_t number;
};

static struct block shared[SHARED];
static pthread_mutex_t locks[SHARED];
static int operations;

static uint64_t next(uint64_t *s) { return (*s = *s * 6364136223846793005ull + 1442695040888963407ull) >> 33; }

static void fail(const char *what, struct block *b) {
  printf("%s: block %p of %zu bytes\n", what, (void *)b->start, b->size);
  exit(1);
}

// The first and last bytes, and one in each page between.
#define EACH(at, size) for (size_t at = 0; at < (size); at += at < 64 || (at) + 64 >= (size) ? 1 : 61 * 67)

static unsigned char pattern(struct block *b, size_t at) { return (unsigned char)(b->number * 131 + at * 7 + 1); }

static void fill(struct block *b, size_t from) {
  EACH(at, b->size) if (at >= from) b->start[at] = pattern(b, at);
}

static void verify(struct block *b, size_t size) {
  EACH(at, b->size) if (at < size && b->start[at] != pattern(b, at)) fail("changed", b);
}

static size_t some_size(uint64_t *seed) {
  switch (next(seed) % 16) {
    case 0: return 0;
    case 1: return (1 << 20) - 64 + next(seed) % 128;
    case 2: return (1 << 20) + next(seed) % (6 << 20);
    case 3: return next(seed) % (12 << 20);
    case 4: case 5: case 6: return next(seed) % 200000;
    default: return next(seed) % 2000;
  }
}

static void make(struct block *b, uint64_t *seed) {
  size_t size = some_size(seed), align = (size_t)8 << next(seed) % 15;
  switch (next(seed) % 4) {
    case 0:
      b->start = calloc(1, size);
      for (size_t at = 0; b->start && at < size; at++)
        if (b->start[at]) fail("not zero", b);
      break;
    case 1:
      if (posix_memalign((void **)&b->start, align, size)) b->start = NULL;
      if ((uintptr_t)b->start % align) fail("not aligned", b);
      break;
    default: b->start = malloc(size);
  }
  if (!b->start) {
    printf("no memory\n");
    exit(1);
  }
  b->size = size;
  b->number = next(seed);
  if (malloc_usable_size(b->start) < size) fail("too short", b);
  fill(b, 0);
}

static void change(struct block *b, uint64_t *seed) {
  if (!b->start) return make(b, seed);
  if (next(seed) % 3) {
    verify(b, b->size);
    free(b->start);
    b->start = NULL;
    return;
  }
  size_t size = some_size(seed) + 1, old = b->size;
  struct block before = *b;
  verify(b, b->size);
  // Where the pattern looks depends on the size: make it dense over what stays.
  size_t both = old < size ? old : size;
  for (size_t at = 0; at < both; at++) b->start[at] = pattern(b, at);
  unsigned char *moved = realloc(b->start, size);
  if (!moved) fail("realloc", &before);
  b->start = moved;
  b->size = size;
  verify(b, both);
  fill(b, 0);
}

static void *worker(void *argument) {
  uint64_t seed = (uintptr_t)argument;
  struct block own[OWN] = {0};
  for (int i = 0; i < operations; i++) {
    if (next(&seed) % 2) {
      change(&own[next(&seed) % OWN], &seed);
    } else {
      int at = (int)(next(&seed) % SHARED);
      pthread_mutex_lock(&locks[at]);
      change(&shared[at], &seed);
      if (shared[at].start && next(&seed) % 2) {
        struct block *mine = &own[next(&seed) % OWN], kept = *mine;
        *mine = shared[at];
        shared[at] = kept;
      }
      pthread_mutex_unlock(&locks[at]);
    }
  }
  // Half of its blocks outlive the thread.
  for (int i = 0; i < OWN; i++) {
    int at = (int)(next(&seed) % SHARED);
    pthread_mutex_lock(&locks[at]);
    if (!shared[at].start && i % 2) {
      shared[at] = own[i];
    } else if (own[i].start) {
      verify(&own[i], own[i].size);
      free(own[i].start);
    }
    pthread_mutex_unlock(&locks[at]);
  }
  return NULL;
}

int main(int argc, char **argv) {
  int generations = argc > 1 ? atoi(argv[1]) : 3;
  operations = argc > 2 ? atoi(argv[2]) : 2000;
  for (int i = 0; i < SHARED; i++) pthread_mutex_init(&locks[i], NULL);
  for (int generation = 0; generation < generations; generation++) {
    pthread_t threads[6];
    for (uintptr_t i = 0; i < 6; i++) pthread_create(&threads[i], NULL, worker, (void *)(generation * 100 + i + 1));
    for (int i = 0; i < 6; i++) pthread_join(threads[i], NULL);
    if (generation % 3 == 2) malloc_trim(0);
  }
  for (int i = 0; i < SHARED; i++)
    if (shared[i].start) {
      verify(&shared[i], shared[i].size);
      free(shared[i].start);
    }
  struct mallinfo2 info = mallinfo2();
  printf("ok, %zu bytes of large buffers left\n", info.hblkhd);
  return 0;
}
