// Signals that interrupt allocations, a library that is loaded and unloaded, threads that end without a join.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

static volatile int signals;
static void on_signal(int number) { signals += number > 0; }

static pthread_key_t key;
// Runs when the thread's other destructors have run, perhaps those of the allocator too.
static void at_thread_end(void *p) {
  free(p);
  static __thread int again;
  if (again++ < 3) pthread_setspecific(key, malloc(3000 + (size_t)again * 700000));
}

static void *thread(void *argument) {
  pthread_setspecific(key, malloc(100));
  void *p = malloc(2 << 20);
  memset(p, 1, 2 << 20);
  free(p);
  return argument;
}

int main(void) {
  struct itimerval often = {{0, 500}, {0, 500}};
  signal(SIGALRM, on_signal);
  setitimer(ITIMER_REAL, &often, NULL);
  pthread_key_create(&key, at_thread_end);
  for (int i = 0; i < 200; i++) {
    pthread_t one, two;
    pthread_create(&one, NULL, thread, NULL);
    pthread_create(&two, NULL, thread, NULL);
    pthread_detach(two);
    void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    if (library) dlclose(library);
    void *p = malloc(5 << 20);
    p = realloc(p, 9 << 20);
    free(p);
    pthread_join(one, NULL);
  }
  // The allocator itself: to close it does not unload it.
  void *self = dlopen(getenv("LD_PRELOAD"), RTLD_NOW);
  if (!self || dlclose(self)) return printf("dlopen: %s\n", dlerror()), 1;
  free(malloc(100));
  struct itimerval never = {{0, 0}, {0, 0}};
  setitimer(ITIMER_REAL, &never, NULL);
  printf("ok\n");
  return 0;
}
