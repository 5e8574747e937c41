// Handlers of others around a fork that allocate, as libraries register them in their constructors; allocations and
// forks of a thread that is asked to end. Each case prints "ok".
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void *held[64];

// Sizes that this thread has no free object of, so that the allocator needs its locks; and large ones.
static void churn(int from) {
  for (int i = 0; i < 64; i++) {
    size_t size = i % 8 == 7 ? (size_t)(i + 1) << 17 : (size_t)(from + i * 97);
    char *p = malloc(size);
    if (!p) _exit(9);
    p[0] = p[size - 1] = 1;
    free(held[i]);
    held[i] = p;
  }
}

static void prepare(void) { churn(3000); }
static void parent(void) { churn(9000); }
static void child(void) { churn(17000); }

static int ended_well(pid_t pid) {
  int status = 0;
  return waitpid(pid, &status, 0) == pid && status == 0;
}

static atomic_int stop;
static void *allocates(void *argument) {
  for (unsigned i = 0; !stop; i++) free(malloc(i % 100 ? i % 5000 : 2 << 20));
  return argument;
}

// The program's own handlers. Those of `atfork_lib.c`, where it is linked, run on the other side of the allocator's.
static int handlers(int rounds) {
  pthread_atfork(prepare, parent, child);
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, allocates, NULL);
  for (int round = 0; round < rounds; round++) {
    pid_t pid = fork();
    if (pid == 0) {
      alarm(20);
      churn(40000);
      _exit(0);
    }
    if (!ended_well(pid)) return printf("a child failed\n"), 1;
  }
  stop = 1;
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  return puts("ok"), 0;
}

// A thread that was asked to end, and that allocates and forks before it comes to a point where it may end.
static atomic_int reached;
static void *cancelled(void *argument) {
  int before;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  while (!*(atomic_int *)argument) usleep(100);
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &before);
  char *p = malloc(5 << 20);
  p[0] = 1;
  free(p);
  churn(5000);
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  free(malloc(9 << 20));
  reached = 1;
  pthread_testcancel();
  return argument;
}

static int cancels(void) {
  for (int round = 0; round < 20; round++) {
    pthread_t thread;
    atomic_int sent = 0;
    reached = 0;
    pthread_create(&thread, NULL, cancelled, &sent);
    pthread_cancel(thread);
    sent = 1;
    void *result;
    pthread_join(thread, &result);
    if (!reached || result != PTHREAD_CANCELED) return printf("round %d: malloc or fork ended the thread\n", round), 1;
    while (waitpid(-1, NULL, WNOHANG) > 0) {}
  }
  return puts("ok"), 0;
}

int main(int argc, char **argv) {
  alarm(100);
  if (argc > 1 && !strcmp(argv[1], "handlers")) return handlers(argc > 2 ? atoi(argv[2]) : 40);
  if (argc > 1 && !strcmp(argv[1], "cancels")) return cancels();
  return 2;
}
