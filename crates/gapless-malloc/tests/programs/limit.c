// Takes memory until there is no more, alone or beside another process that holds some. Prints how many MiB it got.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t MiB = 1 << 20;

static int take(size_t each) {
  static void *slots[1 << 20];
  int count = 0;
  while (count < 1 << 20 && (slots[count] = malloc(each))) {
    memset(slots[count], 1, each < 4096 ? each : 4096);
    count++;
  }
  int reason = errno;
  int got = (int)((size_t)count * each / MiB);
  while (count) free(slots[--count]);
  if (reason != ENOMEM) printf("errno %d\n", reason);
  return got;
}

static int told[2], asked[2];

// Holds 100 MiB, and says so.
static int holds(void) {
  char *held = malloc(100 * MiB);
  if (!held) return 1;
  memset(held, 1, MiB);
  return write(told[1], "x", 1) != 1;
}

static void *stays(void *none) {
  pause();
  return none;
}

// A process that holds 100 MiB, in one of several ways.
static void relative(const char *how, char **argv) {
  if (!strcmp(how, "namespaced") || !strcmp(how, "entered")) {
    // Namespaces of users are for those who are not root. The child is process 1 of its namespace.
    if (unshare(CLONE_NEWPID | (geteuid() ? CLONE_NEWUSER : 0))) _exit(3);
    pid_t child = fork();
    if (child) {
      // Killed by its number here, as its namespace has it by another.
      if (write(asked[1], &child, sizeof child) != sizeof child) _exit(4);
      waitpid(child, NULL, 0);
      _exit(0);
    }
    if (!strcmp(how, "entered")) {
      char number[20];
      snprintf(number, sizeof number, "%d", told[1]);
      execl("/proc/self/exe", argv[0], "held", number, NULL);
      _exit(5);
    }
  }
  if (holds()) _exit(1);
  if (!strcmp(how, "became")) {
    execl("/proc/self/exe", argv[0], "idle", NULL);
    _exit(5);
  }
  if (!strcmp(how, "threads")) {
    // The thread that began the process ends, and another one goes on without allocating.
    pthread_t thread;
    pthread_create(&thread, NULL, stays, NULL);
    pthread_exit(NULL);
  }
  pause();
}

// Takes what there is beside the relative, and again when that was killed.
static int beside(const char *how, char **argv) {
  if (pipe(told) || pipe(asked)) return 1;
  // The bare system call runs no handler around a fork.
  pid_t child = !strcmp(how, "bare") ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
  if (!child) relative(how, argv);
  pid_t holder = child;
  int is_other = !strcmp(how, "namespaced") || !strcmp(how, "entered");
  if (is_other && read(asked[0], &holder, sizeof holder) != sizeof holder) return 1;
  char byte;
  if (read(told[0], &byte, 1) != 1) return 1;
  usleep(100 * 1000);
  printf("%d\n", take(4 * MiB));
  kill(holder, SIGKILL);
  waitpid(child, NULL, 0);
  printf("%d\n", take(4 * MiB));
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  setvbuf(stdout, NULL, _IONBF, 0);
  if (!strcmp(what, "large")) {
    printf("%d\n", take(4 * MiB));
    printf("%d\n", take(4 * MiB));
  } else if (!strcmp(what, "small")) {
    printf("%d\n", take(1000));
  } else if (!strcmp(what, "cached")) {
    // What is kept for reuse goes back first: after 200 MiB in one piece come 200 MiB that do not fit into it.
    free(malloc(200 * MiB));
    void *a = malloc(96 * MiB), *b = malloc(105 * MiB);
    printf("%d\n", a && b);
  } else if (!strcmp(what, "held")) {
    told[1] = atoi(argv[2]);
    if (holds()) return 1;
    pause();
  } else if (!strcmp(what, "idle")) {
    pause();
  } else if (strcmp(what, "forked")) {
    return beside(what, argv);
  } else {
    int pipes[2];
    if (pipe(pipes)) return 1;
    pid_t child = fork();
    if (child == 0) {
      void *held = malloc(100 * MiB);
      if (!held) return 1;
      if (write(pipes[1], "x", 1) != 1) return 1;
      pause();
    }
    char byte;
    if (read(pipes[0], &byte, 1) != 1) return 1;
    printf("%d\n", take(4 * MiB));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    printf("%d\n", take(4 * MiB));
  }
  return 0;
}
