// Every entry point, with sizes and alignments from the edges. Prints "ok", or the line that failed.
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) \
  do { \
    if (!(what)) { \
      printf("line %d: %s\n", __LINE__, #what); \
      exit(1); \
    } \
  } while (0)

extern void *__libc_memalign(size_t, size_t);
static const size_t MiB = 1 << 20;
static volatile size_t huge = SIZE_MAX;

static int is_zero(const char *p, size_t size) { return size == 0 || (p[0] == 0 && !memcmp(p, p + 1, size - 1)); }

static void zero_sizes(void) {
  void *a = malloc(0), *b = malloc(0);
  CHECK(a && b && a != b);
  free(a);
  free(b);
  free(NULL);
  a = calloc(0, 8);
  CHECK(a);
  CHECK(realloc(a, 0) == NULL);
  a = realloc(NULL, 10);
  CHECK(a && malloc_usable_size(a) >= 10);
  free(a);
  CHECK(malloc_usable_size(NULL) == 0);
}

static void overflow(void) {
  void *p;
  errno = 0;
  CHECK(malloc(huge) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(malloc(huge / 2 + 1) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(calloc(huge / 2, 3) == NULL && errno == ENOMEM);
  errno = 0;
  CHECK(reallocarray(NULL, huge / 2, 3) == NULL && errno == ENOMEM);
  char *keep = malloc(2 * MiB);
  keep[0] = 7;
  errno = 0;
  CHECK(realloc(keep, huge - 4096) == NULL && errno == ENOMEM && keep[0] == 7);
  free(keep);
  errno = 0;
  CHECK(posix_memalign(&p, 64, huge) == ENOMEM);
  CHECK(posix_memalign(&p, 24, 8) == EINVAL);
  CHECK(posix_memalign(&p, 4, 8) == EINVAL);
  CHECK(posix_memalign(&p, 0, 8) == EINVAL);
  errno = 0;
  CHECK(pvalloc(huge) == NULL && errno == ENOMEM);
  errno = 0;
  // glibc rounds up to a power of two until 2.37, and refuses later.
  void *odd = aligned_alloc(24, 48);
  CHECK(odd ? (uintptr_t)odd % 32 == 0 : errno == EINVAL);
  free(odd);
}

static void alignments(void) {
  size_t sizes[] = {1, 24, 4096, 100000, 3 * MiB};
  for (size_t align = 8; align <= 4096 * MiB; align *= 2)
    for (int s = 0; s < 5; s++) {
      void *p = NULL;
      CHECK(posix_memalign(&p, align, sizes[s]) == 0);
      CHECK((uintptr_t)p % align == 0 && malloc_usable_size(p) >= sizes[s]);
      memset(p, 0xa5, sizes[s]);
      free(p);
      p = aligned_alloc(align, sizes[s]);
      CHECK(p && (uintptr_t)p % align == 0);
      free(p);
      p = memalign(align, sizes[s]);
      CHECK(p && (uintptr_t)p % align == 0);
      free(p);
    }
  void *p = __libc_memalign(64, 100);
  CHECK((uintptr_t)p % 64 == 0);
  free(p);
  p = valloc(100);
  CHECK(p && (uintptr_t)p % 4096 == 0);
  free(p);
  p = pvalloc(100);
  CHECK(p && (uintptr_t)p % 4096 == 0 && malloc_usable_size(p) >= 4096);
  free(p);
}

// Dirty memory must not come out of calloc, whatever it was used for.
static void zeroed(void) {
  for (int round = 0; round < 6; round++) {
    size_t sizes[] = {100, 70000, MiB, 5 * MiB + 3, 300 * MiB, 1100 * MiB};
    for (int s = 0; s < 6; s++) {
      if (sizes[s] > 8 * MiB && round > 0) continue;
      char *p = malloc(sizes[s]);
      CHECK(p);
      memset(p, 0xff, sizes[s]);
      free(p);
      p = calloc(1, sizes[s]);
      CHECK(p && is_zero(p, sizes[s]));
      memset(p, 0xff, sizes[s]);
      free(p);
    }
  }
}

static void contents(void) {
  // Growing and shrinking over the border of small and large, with a neighbour that blocks growth in place.
  for (size_t from = 1000; from < 40 * MiB; from = from * 3 + 17)
    for (size_t to = 500; to < 90 * MiB; to = to * 4 + 5) {
      unsigned char *p = malloc(from);
      for (size_t i = 0; i < from; i += 997) p[i] = (unsigned char)(i * 31);
      void *beside = malloc(MiB);
      p = realloc(p, to);
      CHECK(p && malloc_usable_size(p) >= to);
      for (size_t i = 0; i < from && i < to; i += 997) CHECK(p[i] == (unsigned char)(i * 31));
      memset(p, 1, to);
      free(beside);
      free(p);
    }
  // One that is moved, grows, and is moved again: several mappings of the kernel's.
  size_t size = 8 * MiB, n = 0;
  unsigned char *p = malloc(size), *blocks[40];
  for (size_t i = 0; i < size; i += 4096) p[i] = (unsigned char)(i >> 12);
  for (int round = 0; round < 20; round++) {
    blocks[n++] = malloc(MiB);
    size_t more = size + 5 * MiB + 123;
    p = realloc(p, more);
    CHECK(p);
    for (size_t i = 0; i < size; i += 4096) CHECK(p[i] == (unsigned char)(i >> 12));
    for (size_t i = (size + 4095) / 4096 * 4096; i < more; i += 4096) p[i] = (unsigned char)(i >> 12);
    size = more / 4096 * 4096;
  }
  free(p);
  while (n) free(blocks[--n]);
}

static void questions(void) {
  char *p = malloc(64 * MiB);
  memset(p, 1, 64 * MiB);
  struct mallinfo2 before = mallinfo2();
  CHECK(before.hblkhd >= 64 * MiB && before.uordblks >= 64 * MiB);
  errno = 77;
  free(p);
  CHECK(errno == 77);
  struct mallinfo2 after = mallinfo2();
  CHECK(after.hblkhd + 64 * MiB == before.hblkhd && after.fordblks >= 64 * MiB);
  CHECK(malloc_trim(0) == 1);
  // Rests of spans, of which some object is in use, stay.
  CHECK(mallinfo2().fordblks <= 8 * MiB);
  CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
  FILE *f = tmpfile();
  CHECK(f && malloc_info(0, f) == 0 && ftell(f) > 100);
  fclose(f);
  CHECK(malloc_info(1, stdout) == -1);
  malloc_stats();
}

int main(void) {
  zero_sizes();
  overflow();
  alignments();
  zeroed();
  contents();
  questions();
  puts("ok");
  return 0;
}
