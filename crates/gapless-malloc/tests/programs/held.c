// What a process holds from the kernel, against what it touched. Each case prints "ok".
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t KiB = 1 << 10, MiB = 1 << 20;

static long status_kib(const char *name) {
  char line[256];
  long kib = -1;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, name, strlen(name))) kib = atol(line + strlen(name));
  if (f) fclose(f);
  return kib;
}

static int most(const char *name, long kib) {
  long found = status_kib(name);
  if (found > kib) printf("%s %ld KiB, more than %ld\n", name, found, kib);
  return found > kib;
}

// Blocks of which two pages are touched.
static int sparse(int count, size_t size, int zeroed) {
  for (int i = 0; i < count; i++) {
    char *p = zeroed ? calloc(1, size) : malloc(size);
    if (!p) return printf("block %d was refused\n", i), 1;
    p[100] = p[size / 2] = 1;
  }
  return 0;
}

static long mappings(void) {
  long lines = 0;
  FILE *f = fopen("/proc/self/maps", "r");
  for (int c; (c = fgetc(f)) != EOF;) lines += c == '\n';
  fclose(f);
  return lines;
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "";
  int failed;
  if (!strcmp(how, "sparse")) {
    failed = sparse(1000, 8 * MiB, 0) || most("VmRSS:", 16 * 1024);
  } else if (!strcmp(how, "sparse-zeroed")) {
    failed = sparse(500, 16 * MiB, 1) || most("VmRSS:", 12 * 1024);
  } else if (!strcmp(how, "sparse-after-filled")) {
    // Blocks of the same size that stay filled do not make those after them large.
    for (int i = 0; i < 4; i++) memset(malloc(8 * MiB), 1, 8 * MiB);
    failed = sparse(500, 8 * MiB, 0) || most("VmRSS:", 52 * 1024);
  } else if (!strcmp(how, "many")) {
    failed = 0;
    for (int i = 0; i < 80000 && !failed; i++)
      if (!malloc(900 * 1000)) failed = printf("block %d was refused\n", i);
  } else if (!strcmp(how, "huge")) {
    failed = 0;
    for (int i = 0; i < 100 && !failed; i++)
      if (!malloc(4096 * MiB)) failed = printf("block %d was refused\n", i);
  } else if (!strcmp(how, "forked")) {
    // A parent that is idle after a fork.
    char *p = malloc(256 * MiB);
    memset(p, 1, 256 * MiB);
    free(p);
    pid_t pid = fork();
    if (!pid) _exit(0);
    waitpid(pid, NULL, 0);
    for (int i = 0; i < 80 && status_kib("VmRSS:") > 32 * 1024; i++) usleep(100 * 1000);
    failed = most("VmRSS:", 32 * 1024);
  } else if (!strcmp(how, "writable")) {
    free(malloc(100));
    failed = most("VmData:", 33 * 1024);
  } else if (!strcmp(how, "moved")) {
    // Buffers that grow one beside the other: each moves.
    static char *all[3000];
    for (int i = 0; i < 3000; i++) all[i] = malloc(4 * MiB);
    for (int i = 0; i < 3000; i++)
      if (!(all[i] = realloc(all[i], 9 * MiB))) return printf("buffer %d\n", i), 1;
    for (int i = 0; i < 3000; i++)
      if (!(all[i] = realloc(all[i], 20 * MiB))) return printf("buffer %d\n", i), 1;
    long found = mappings();
    failed = found > 20000 ? printf("%ld mappings\n", found) : 0;
  } else {
    return 2;
  }
  if (failed) return 1;
  puts("ok");
  return 0;
}
