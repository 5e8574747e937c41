// A library that holds its mutex across a fork, needed (its constructor ran first) or loaded later. Prints "ok".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

extern void library_works(unsigned) __attribute__((weak));
static void (*works)(unsigned);
static atomic_int stop;

static void *runs(void *argument) {
  for (unsigned i = 0; !stop; i++) works(i);
  return argument;
}

int main(int argc, char **argv) {
  alarm(60);
  works = library_works;
  if (argc > 2) {
    void *library = dlopen(argv[2], RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    works = (void (*)(unsigned))dlsym(library, "library_works");
  }
  if (!works) return puts("no library"), 1;
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, runs, NULL);
  int rounds = argc > 1 ? atoi(argv[1]) : 100;
  for (int round = 0; round < rounds; round++) {
    pid_t pid = fork();
    if (!pid) {
      alarm(20);
      for (unsigned i = 0; i < 60; i++) works(i);
      free(malloc(3 << 20));
      _exit(0);
    }
    int status;
    if (waitpid(pid, &status, 0) != pid || status) return printf("round %d: %x\n", round, status), 1;
  }
  stop = 1;
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  puts("ok");
  return 0;
}
