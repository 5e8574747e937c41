// What a program does to the pages of its own blocks, the whole of every block, and what malloc leaves alone.
// Each case prints "ok".
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t MiB = 1 << 20;

static int fails(const char *what) { return printf("%s: %s\n", what, strerror(errno)), 1; }

// Guards that the program never takes away before it frees the buffer, as of stacks of coroutines.
static int guarded(void) {
  for (int round = 0; round < 40; round++) {
    char *stacks[4];
    for (int i = 0; i < 4; i++) {
      size_t size = (size_t)(i + 1) * 40 * MiB;
      if (posix_memalign((void **)&stacks[i], 4096, size)) return fails("posix_memalign");
      if (mprotect(stacks[i], 4096, PROT_NONE)) return fails("mprotect");
      if (mprotect(stacks[i] + size / 2, 8192, PROT_READ)) return fails("mprotect");
      stacks[i][4096] = 1;
    }
    for (int i = 0; i < 4; i++) free(stacks[i]);
    char *whole = malloc(150 * MiB);
    for (size_t at = 0; at < 150 * MiB; at += 4096) whole[at] = 1;
    free(whole);
  }
  return 0;
}

// Pages that were made read-only and writable again, dropped, or not to be copied by a fork.
static int advised(void) {
  for (size_t size = 8192; size <= 32 * MiB; size *= 4) {
    char *p;
    if (posix_memalign((void **)&p, 4096, size)) return fails("posix_memalign");
    memset(p, 7, size);
    if (mprotect(p, 4096, PROT_READ) || mprotect(p, 4096, PROT_READ | PROT_WRITE)) return fails("mprotect");
    if (madvise(p + 4096, 4096, MADV_DONTNEED)) return fails("madvise");
    if (p[0] != 7 || p[4096] != 0) return printf("dropped pages are not zero\n"), 1;
    madvise(p, size, MADV_DONTFORK);
    madvise(p, size, MADV_DOFORK);
    madvise(p, size, MADV_FREE);
    madvise(p, size, MADV_HUGEPAGE);
    madvise(p, size, MADV_MERGEABLE);
    mlock(p, 4096);
    free(p);
    char *z = calloc(1, size);
    for (size_t at = 0; z && at < size; at++)
      if (z[at]) return printf("calloc of %zu found %d at %zu\n", size, z[at], at), 1;
    free(z);
  }
  return 0;
}

// Every byte that malloc_usable_size tells of may be written.
static int usable(void) {
  uint64_t seed = 7;
  struct { unsigned char *p; size_t n; unsigned char mark; } all[300] = {0};
  for (int round = 0; round < 20000; round++) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    int at = (int)(seed >> 33) % 300;
    unsigned char *p = all[at].p;
    for (size_t i = 0; i < all[at].n; i += all[at].n > 9000 ? 501 : 1)
      if (p[i] != all[at].mark) return printf("a byte of %zu changed\n", all[at].n), 1;
    if (all[at].n && p[all[at].n - 1] != all[at].mark) return printf("the last byte of %zu changed\n", all[at].n), 1;
    free(p);
    size_t size = (seed >> 20) % 40 ? (seed >> 40) % 3000 : (seed >> 40) % (3 * MiB);
    switch ((seed >> 12) % 5) {
    case 0: all[at].p = malloc(size); break;
    case 1: all[at].p = calloc(1, size); break;
    case 2: all[at].p = aligned_alloc(64u << (seed >> 8) % 8, size); break;
    case 3: all[at].p = realloc(aligned_alloc(256, size / 2 + 1), size + 1); break;
    default: all[at].p = realloc(malloc(size), size / 3 + 1);
    }
    if (!all[at].p) return fails("malloc");
    all[at].n = malloc_usable_size(all[at].p);
    all[at].mark = (unsigned char)(seed >> 24);
    memset(all[at].p, all[at].mark, all[at].n);
  }
  return 0;
}

// Calls that succeed leave errno as it was.
static int quiet(void) {
  for (size_t size = 1; size < 300 * MiB; size = size * 3 + 1) {
    errno = 4242;
    char *p = malloc(size);
    if (errno != 4242) return fails("malloc changed errno");
    p = realloc(p, size * 2);
    if (errno != 4242) return fails("realloc changed errno");
    free(p);
    if (errno != 4242) return fails("free changed errno");
    p = calloc(1, size);
    if (errno != 4242) return fails("calloc changed errno");
    free(p);
    p = aligned_alloc(4096, size);
    if (errno != 4242) return fails("aligned_alloc changed errno");
    free(p);
  }
  return 0;
}

static int aligned(void) {
  for (size_t align = 32; align <= 1024 * MiB; align *= 4) {
    unsigned char *p = aligned_alloc(align, 5000);
    if (!p || (uintptr_t)p % align) return fails("aligned_alloc");
    memset(p, 9, 5000);
    for (size_t size = 6000; size < 9 * MiB; size *= 3) {
      p = realloc(p, size);
      if (!p || p[4999] != 9) return fails("realloc of aligned memory");
    }
    p = realloc(p, 100);
    if (!p || p[99] != 9) return fails("realloc to less");
    free(p);
  }
  char *giant = aligned_alloc(1024 * MiB, 1024 * MiB);
  if (!giant || (uintptr_t)giant % (1024 * MiB)) return fails("1 GiB at a multiple of 1 GiB");
  giant[0] = giant[1024 * MiB - 1] = 1;
  free(giant);
  return 0;
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  int result = !strcmp(name, "guarded") ? guarded()
             : !strcmp(name, "advised") ? advised()
             : !strcmp(name, "usable") ? usable()
             : !strcmp(name, "quiet") ? quiet()
             : !strcmp(name, "aligned") ? aligned()
             : 2;
  if (!result) puts("ok");
  return result;
}
