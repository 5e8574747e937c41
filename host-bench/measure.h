// What every program prints at its end: CPU time of the process and its children, and its peak of resident memory.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static inline double seconds_of(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec * 1e-6; }

static inline double cpu_seconds(void) {
  struct rusage own, children;
  getrusage(RUSAGE_SELF, &own);
  getrusage(RUSAGE_CHILDREN, &children);
  return seconds_of(own.ru_utime) + seconds_of(own.ru_stime) + seconds_of(children.ru_utime) +
         seconds_of(children.ru_stime);
}

static inline double wall_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// From the kernel's account of this program: that of getrusage also counts what ran in the process before `exec`.
static inline long peak_kib(void) {
  char text[8192];
  FILE *status = fopen("/proc/self/status", "r");
  size_t length = status ? fread(text, 1, sizeof text - 1, status) : 0;
  text[length] = 0;
  if (status) fclose(status);
  const char *line = strstr(text, "VmHWM:");
  return line ? strtol(line + 6, NULL, 10) : 0;
}

// Resident memory now.
static inline long resident_kib(void) {
  char line[256];
  long kib = 0;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
  if (f) fclose(f);
  return kib;
}

// One line that the bench reads: a figure, its unit, and the peak.
static inline void tell(double figure) { printf("figure %.6f peak_kib %ld\n", figure, peak_kib()); }

static inline uint64_t next_random(uint64_t *state) {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;
  return *state >> 33;
}
