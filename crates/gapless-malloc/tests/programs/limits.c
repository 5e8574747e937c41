// Limits of the kernel that a program sets for itself, with what it can still do below them. Each case prints "ok".
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t MiB = 1 << 20;

static int fails(const char *what) { return printf("%s: %s\n", what, strerror(errno)), 1; }

static long status_kib(const char *name) {
  char line[256];
  long kib = -1;
  FILE *f = fopen("/proc/self/status", "r");
  while (f && fgets(line, sizeof line, f))
    if (!strncmp(line, name, strlen(name))) kib = atol(line + strlen(name));
  if (f) fclose(f);
  return kib;
}

static int set(int what, size_t bytes) {
  struct rlimit limit = {bytes, bytes};
  return setrlimit(what, &limit);
}

static void *thread(void *argument) {
  char *p = malloc(100000);
  if (!p) return NULL;
  memset(p, 1, 100000);
  free(p);
  return argument;
}

// Below the limit the program maps, starts threads and allocates; above it malloc fails.
static int below(size_t limit, size_t room, size_t more) {
  void *map = mmap(NULL, room / 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return fails("mmap");
  munmap(map, room / 4);
  pthread_t started;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, MiB);
  if ((errno = pthread_create(&started, &attributes, thread, map))) return fails("pthread_create");
  void *result;
  pthread_join(started, &result);
  if (result != map) return printf("the thread got no memory\n"), 1;
  char *large = malloc(room / 2);
  if (!large) return fails("half of the room at once");
  memset(large, 1, room / 2);
  free(large);
  char *pieces[4096];
  int count = 0;
  size_t sum = 0;
  for (; count < 4096 && sum < room / 2; count++) {
    size_t size = 1000 + (size_t)count * 37 % 40000;
    if (!(pieces[count] = malloc(size))) return fails("small blocks");
    memset(pieces[count], 2, size);
    sum += size;
  }
  while (count) free(pieces[--count]);
  errno = 0;
  char *too_much = malloc(more);
  if (too_much) return printf("%zu MiB were given below a limit of %zu\n", more / MiB, limit / MiB), 1;
  if (errno != ENOMEM) return fails("the refusal");
  large = malloc(room / 2);
  return large ? (free(large), 0) : fails("half of the room again");
}

// A limit that is taken away again leaves nothing behind: blocks of every kind get three times its memory.
static int lifted(int what) {
  struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
  const size_t sizes[] = {1000, 100000, 300000, 2 * MiB, 250 * MiB}, all = 300 * MiB;
  for (int i = 0; i < 5; i++) {
    pid_t pid = fork();
    if (!pid) {
      struct rlimit low = {100 * MiB, RLIM_INFINITY};
      if (setrlimit(what, &low)) _exit(fails("setrlimit"));
      free(malloc(1000));
      if (setrlimit(what, &none)) _exit(fails("setrlimit"));
      for (size_t sum = 0; sum < all; sum += sizes[i]) {
        char *p = malloc(sizes[i]);
        if (!p) _exit((printf("%zu MiB of %zu bytes, ", sum / MiB, sizes[i]), fails("after the limit")));
        p[0] = p[sizes[i] - 1] = 1;
      }
      _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (status) return 1;
  }
  return 0;
}

int main(int argc, char **argv) {
  const char *name = argc > 1 ? argv[1] : "";
  // The program has used memory before.
  for (int i = 0; i < 3; i++) {
    char *p = malloc(24 * MiB);
    memset(p, 1, 24 * MiB);
    free(p);
  }
  if (!strcmp(name, "addresses")) {
    if (set(RLIMIT_AS, 512 * MiB)) return fails("setrlimit");
    if (below(512 * MiB, 256 * MiB, 512 * MiB)) return 1;
  } else if (!strcmp(name, "inherited")) {
    // The limit is there when a program begins, as after `ulimit -v`.
    if (argc > 2) return below(512 * MiB, 256 * MiB, 512 * MiB) ? 1 : (puts("ok"), 0);
    if (set(RLIMIT_AS, 512 * MiB)) return fails("setrlimit");
    execl("/proc/self/exe", argv[0], "inherited", "again", NULL);
    return fails("exec");
  } else if (!strcmp(name, "data")) {
    if (set(RLIMIT_DATA, 200 * MiB)) return fails("setrlimit");
    if (below(200 * MiB, 120 * MiB, 200 * MiB)) return 1;
  } else if (!strcmp(name, "data-inherited")) {
    if (argc > 2) return below(200 * MiB, 120 * MiB, 200 * MiB) ? 1 : (puts("ok"), 0);
    if (set(RLIMIT_DATA, 200 * MiB)) return fails("setrlimit");
    execl("/proc/self/exe", argv[0], "data-inherited", "again", NULL);
    return fails("exec");
  } else if (!strcmp(name, "raised")) {
    // Down, and further down, and up again.
    struct rlimit low = {700 * MiB, RLIM_INFINITY}, lower = {512 * MiB, RLIM_INFINITY};
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_AS, &low)) return fails("setrlimit");
    if (below(700 * MiB, 400 * MiB, 700 * MiB)) return 1;
    if (prlimit(0, RLIMIT_AS, &lower, NULL)) return fails("prlimit");
    if (below(512 * MiB, 256 * MiB, 512 * MiB)) return 1;
    if (setrlimit(RLIMIT_AS, &none)) return fails("setrlimit");
    char *p = malloc(400 * MiB);
    if (!p) return fails("after the limit was taken away");
    memset(p, 1, 400 * MiB);
    free(p);
  } else if (!strcmp(name, "lifted")) {
    // In a program that sets the limit, and in one that begins below it.
    if (argc > 2) return lifted(atoi(argv[2])) ? 1 : (puts("ok"), 0);
    const int limits[] = {RLIMIT_AS, RLIMIT_DATA};
    for (int i = 0; i < 2; i++) {
      if (lifted(limits[i])) return 1;
      char number[16];
      snprintf(number, sizeof number, "%d", limits[i]);
      pid_t pid = fork();
      if (!pid) {
        struct rlimit low = {100 * MiB, RLIM_INFINITY};
        if (setrlimit(limits[i], &low)) return fails("setrlimit");
        execl("/proc/self/exe", argv[0], "lifted", number, NULL);
        return fails("exec");
      }
      int status;
      waitpid(pid, &status, 0);
      if (status) return 1;
    }
  } else if (!strcmp(name, "locked")) {
    // All memory is locked: what is there becomes resident, and nothing else.
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) return fails("mlockall");
    long resident = status_kib("VmRSS:");
    if (resident > 160 * 1024) return printf("%ld MiB became resident\n", resident / 1024), 1;
    for (int i = 0; i < 20; i++) {
      char *p = calloc(1, (size_t)(i + 1) * MiB);
      if (!p || p[i * 4096]) return fails("calloc");
      memset(p, 1, (size_t)(i + 1) * MiB);
      p = realloc(p, (size_t)(i + 9) * MiB);
      if (!p || p[0] != 1) return fails("realloc");
      free(p);
    }
    if (thread("x") == NULL) return fails("malloc");
    munlockall();
  } else if (!strcmp(name, "thin")) {
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    char *p = malloc(64 * MiB);
    memset(p, 1, 64 * MiB);
    free(p);
  } else if (!strcmp(name, "processes")) {
    // No thread can be started any more.
    if (set(RLIMIT_NPROC, 0)) return fails("setrlimit");
    if (geteuid() == 0 && (setgid(65534) || setuid(65534))) return fails("setuid");
    for (int i = 0; i < 50; i++) {
      char *p = malloc((size_t)(i + 1) * MiB);
      if (!p) return fails("malloc");
      memset(p, 1, (size_t)(i + 1) * MiB);
      free(p);
    }
  } else if (!strcmp(name, "files")) {
    if (set(RLIMIT_NOFILE, 3)) return fails("setrlimit");
    char *p = malloc(64 * MiB);
    if (!p) return fails("malloc");
    memset(p, 1, 64 * MiB);
    p = realloc(p, 200 * MiB);
    if (!p || p[64 * MiB - 1] != 1) return fails("realloc");
    free(p);
  } else {
    return 2;
  }
  puts("ok");
  return 0;
}
