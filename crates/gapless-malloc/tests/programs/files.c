// Programs that use descriptors by their numbers while the allocator has files of its own. Each case prints "ok".
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t MiB = 1 << 20;
static char folder[] = "/tmp/gapless_files_XXXXXX";

static int fails(const char *what) { return printf("%s: %s\n", what, strerror(errno)), 1; }

// Blocks of all sizes for some seconds: statistics are written twice a second, recordings all the time.
static void work(int rounds) {
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < 3000; i++) {
      char *p = malloc((size_t)(i * 37 % 6000 + 1));
      p[0] = 1;
      free(p);
    }
    char *large = malloc(3 * MiB);
    memset(large, 1, 3 * MiB);
    free(large);
    usleep(20 * 1000);
  }
}

// Whether the file has what the program wrote, and nothing else.
static int holds(const char *path, const char *text) {
  char found[4096] = {0};
  int file = open(path, O_RDONLY);
  if (file < 0) return fails(path);
  ssize_t length = read(file, found, sizeof found - 1);
  close(file);
  if (length != (ssize_t)strlen(text) || strcmp(found, text))
    return printf("%s has %zd bytes: %.40s\n", path, length, found), 1;
  return 0;
}

static const char *name(int number) {
  static char path[200];
  snprintf(path, sizeof path, "%s/%d", folder, number);
  return path;
}

// Descriptors below 512 that the program did not open.
static int foreign(void) {
  int found = 0;
  DIR *all = opendir("/proc/self/fd");
  for (struct dirent *entry; (entry = readdir(all));) {
    int number = atoi(entry->d_name);
    if (number > 2 && number < 512 && number != dirfd(all) && entry->d_name[0] != '.') {
      char target[300] = {0}, link[40];
      snprintf(link, sizeof link, "/proc/self/fd/%d", number);
      if (readlink(link, target, sizeof target - 1) > 0 && !strncmp(target, "/dev/shm/", 9))
        found = printf("%s is %s\n", link, target);
      else if (strstr(target, ".gtrace") || strstr(target, "hoststats"))
        found = printf("%s is %s\n", link, target);
    }
  }
  closedir(all);
  return found;
}

// A file under every low number, each written by its number again and again.
static int takes_all(int from, int to) {
  for (int number = from; number < to; number++) {
    int file = open(name(number), O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (file < 0) return fails("open");
    if (file != number && (dup2(file, number) != number || close(file))) return fails("dup2");
  }
  for (int round = 0; round < 10; round++) {
    work(10);
    for (int number = from; number < to; number++)
      if (pwrite(number, "mine", 4, 0) != 4) return fails("a file of the program's cannot be written");
  }
  for (int number = from; number < to; number++)
    if (holds(name(number), "mine")) return 1;
  return 0;
}

static int ends, spoiled;

// Closes 3 and opens a file: it must be 3, because no other thread of the program opens one.
static void *opens(void *none) {
  while (!__atomic_load_n(&ends, __ATOMIC_RELAXED)) {
    int file = dup(0);
    if (file != 3) {
      printf("a file got %d, so something else is 3\n", file);
      __atomic_store_n(&spoiled, 1, __ATOMIC_RELAXED);
      return NULL;
    }
    close(file);
  }
  return NULL;
}

// Puts a file of the program's under all numbers, and closes all of them.
static void *replaces(void *none) {
  int mine = open(name(4), O_RDWR | O_CREAT | O_TRUNC, 0600), high = fcntl(mine, F_DUPFD, 1023);
  if (write(mine, "mine", 4) != 4) spoiled = 1;
  while (!__atomic_load_n(&ends, __ATOMIC_RELAXED)) {
    for (int number = 3; number < 1023; number++) dup2(high, number);
    for (int number = 3; number < 1023; number++) close(number);
  }
  close(high);
  if (holds(name(4), "mine")) spoiled = 1;
  return NULL;
}

static int beside(void *(*hostile)(void *)) {
  pthread_t thread;
  ends = 0;
  if (pthread_create(&thread, NULL, hostile, NULL)) return fails("a thread");
  for (int round = 0; round < 12; round++) {
    // Memory that is kept makes the helper look at the machine's and the control group's.
    char *kept = malloc(64 * MiB);
    memset(kept, 1, 64 * MiB);
    free(kept);
    work(1);
    usleep(100 * 1000);
  }
  ends = 1;
  pthread_join(thread, NULL);
  return spoiled;
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "";
  if (!mkdtemp(folder)) return fails("mkdtemp");
  work(40);
  if (foreign()) return 1;
  int failed = 0;
  if (!strcmp(how, "dup2")) {
    failed = takes_all(3, 40);
  } else if (!strcmp(how, "closed")) {
    syscall(SYS_close_range, 3, ~0u, 0);
    failed = takes_all(3, 40);
  } else if (!strcmp(how, "closed-one-by-one")) {
    for (int number = 3; number < 1200; number++) close(number);
    failed = takes_all(3, 40);
  } else if (!strcmp(how, "high")) {
    failed = takes_all(500, 560);
  } else if (!strcmp(how, "opened-beside")) {
    failed = beside(opens);
  } else if (!strcmp(how, "replaced-beside")) {
    failed = beside(replaces);
    // A child has statistics and a recording of its own.
    pid_t pid = failed ? 0 : fork();
    if (!failed && !pid) _exit(beside(replaces));
    int status = 0;
    if (!failed && (waitpid(pid, &status, 0) != pid || status)) failed = 1;
  } else if (!strcmp(how, "forked")) {
    pid_t pid = fork();
    if (!pid) {
      syscall(SYS_close_range, 3, ~0u, 0);
      _exit(takes_all(3, 40));
    }
    int status;
    waitpid(pid, &status, 0);
    failed = status != 0 || takes_all(50, 60);
  } else if (!strcmp(how, "daemon")) {
    // The daemon's own output goes nowhere, so it says how it went by a file.
    pid_t pid = fork();
    if (!pid) {
      if (daemon(0, 0)) _exit(1);
      int result = takes_all(3, 20);
      char written[200];
      strcpy(written, name(1000));
      FILE *f = fopen(written, "w");
      fprintf(f, result ? "failed" : "fine");
      fclose(f);
      rename(written, name(1001));
      _exit(0);
    }
    for (int i = 0; i < 400 && access(name(1001), F_OK); i++) usleep(100 * 1000);
    failed = holds(name(1001), "fine");
  } else if (!strcmp(how, "exec")) {
    if (argc > 2) {
      failed = takes_all(3, 20);
    } else {
      syscall(SYS_close_range, 3, ~0u, 0);
      execl("/proc/self/exe", argv[0], "exec", "again", NULL);
      return fails("exec");
    }
  } else {
    return 2;
  }
  char command[100];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  if (failed || system(command)) return 1;
  puts("ok");
  return 0;
}
