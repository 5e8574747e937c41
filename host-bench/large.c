// Large buffers, as data loaders and checkpoints use them. Each case prints its figure, for docs/measured/host.md.
#include "measure.h"
#include <sys/mman.h>
#include <unistd.h>

static const size_t MiB = 1 << 20;

// Writes every byte. The compiler must not know what becomes of the buffer, or it leaves the allocation out.
static void touch(char *p, size_t size) {
  memset(p, 1, size);
  __asm__ volatile("" : : "r"(p) : "memory");
}

// Milliseconds of CPU for one allocate, touch, free.
static double cycle(size_t size, int rounds) {
  for (int i = 0; i < 2; i++) {
    char *p = malloc(size);
    touch(p, size);
    free(p);
  }
  double start = cpu_seconds();
  for (int i = 0; i < rounds; i++) {
    char *p = malloc(size);
    if (!p) exit(1);
    touch(p, size);
    free(p);
  }
  return (cpu_seconds() - start) * 1e3 / rounds;
}

// What touching costs where the memory is simply kept.
static double floor_of(size_t size, int rounds) {
  char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(p, size, MADV_HUGEPAGE);
  touch(p, size);
  double start = cpu_seconds();
  for (int i = 0; i < rounds; i++) touch(p, size);
  return (cpu_seconds() - start) * 1e3 / rounds;
}

// Eight buffers of 32 to 96 MiB, the oldest replaced each time.
static double ring(int rounds) {
  char *slots[8] = {0};
  uint64_t seed = 42;
  double start = 0;
  for (int i = 0; i < rounds + 16; i++) {
    if (i == 16) start = cpu_seconds();
    free(slots[i % 8]);
    size_t size = (32 + next_random(&seed) % 65) * MiB;
    slots[i % 8] = malloc(size);
    if (!slots[i % 8]) exit(1);
    touch(slots[i % 8], size);
  }
  double spent = (cpu_seconds() - start) * 1e3 / rounds;
  for (int i = 0; i < 8; i++) free(slots[i]);
  return spent;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

// Microseconds of one free(), the median of some.
static double one_free(size_t size) {
  double all[9];
  for (int i = 0; i < 9; i++) {
    char *p = malloc(size);
    if (!p) exit(1);
    touch(p, size);
    double start = wall_seconds();
    free(p);
    all[i] = (wall_seconds() - start) * 1e6;
  }
  qsort(all, 9, sizeof *all, compare);
  return all[4];
}

// Resident memory over live memory after ten seconds in which nothing happens.
static double idle(void) {
  char *live = malloc(256 * MiB);
  touch(live, 256 * MiB);
  char *dead[16];
  for (int i = 0; i < 16; i++) {
    dead[i] = malloc(64 * MiB);
    touch(dead[i], 64 * MiB);
  }
  for (int i = 0; i < 16; i++) free(dead[i]);
  sleep(10);
  double ratio = (double)resident_kib() * 1024 / (256.0 * (double)MiB);
  free(live);
  return ratio;
}

// A buffer that is used again after 1.5 s: milliseconds of CPU.
static double pause_and_reuse(void) {
  double all[5];
  free(malloc(64 * MiB));
  for (int i = 0; i < 6; i++) {
    double start = cpu_seconds();
    char *p = malloc(64 * MiB);
    touch(p, 64 * MiB);
    free(p);
    if (i) all[i - 1] = (cpu_seconds() - start) * 1e3;
    usleep(1500 * 1000);
  }
  qsort(all, 5, sizeof *all, compare);
  return all[2];
}

// A buffer that grows from 16 MiB to 1 GiB by realloc, beside others.
static double grow(int rounds) {
  double start = cpu_seconds();
  for (int i = 0; i < rounds; i++) {
    char *p = malloc(16 * MiB), *beside[64];
    touch(p, 16 * MiB);
    int count = 0;
    for (size_t size = 32 * MiB; size <= 1024 * MiB; size += 32 * MiB) {
      beside[count++] = malloc(2 * MiB);
      p = realloc(p, size);
      if (!p) exit(1);
      memset(p + size - 16 * MiB, 1, 16 * MiB);
    }
    free(p);
    while (count) free(beside[--count]);
  }
  return (cpu_seconds() - start) * 1e3 / rounds;
}

// 512 MiB of zeros of which a little is touched, as a table is.
static double zeros(int rounds) {
  double start = cpu_seconds();
  for (int i = 0; i < rounds; i++) {
    char *p = calloc(1, 512 * MiB);
    for (size_t at = 0; at < 512 * MiB; at += 16 * MiB) {
      if (p[at]) exit(3);
      p[at] = 1;
    }
    free(p);
  }
  return (cpu_seconds() - start) * 1e3 / rounds;
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  if (!strcmp(name, "floor64")) tell(floor_of(64 * MiB, 40));
  else if (!strcmp(name, "64MiB")) tell(cycle(64 * MiB, 40));
  else if (!strcmp(name, "4MiB")) tell(cycle(4 * MiB, 400));
  else if (!strcmp(name, "ring8")) tell(ring(60));
  else if (!strcmp(name, "2GiB")) tell(cycle(2048 * MiB, 3));
  else if (!strcmp(name, "free2GiB")) tell(one_free(2048 * MiB));
  else if (!strcmp(name, "idle")) tell(idle());
  else if (!strcmp(name, "pause")) tell(pause_and_reuse());
  else if (!strcmp(name, "grow")) tell(grow(3));
  else if (!strcmp(name, "zeros")) tell(zeros(20));
  else return fprintf(stderr, "no case is called %s\n", name), 2;
  return 0;
}
