// Forks while eight threads allocate and free. A child allocates, frees what its parent allocated, starts a thread,
// and ends. A child that does not end is a hang.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int stop;

static uint64_t next(uint64_t *s) { return (*s = *s * 6364136223846793005ull + 1442695040888963407ull) >> 33; }

static void *worker(void *argument) {
  uint64_t seed = (uintptr_t)argument;
  void *slots[64] = {0};
  for (int count = 0; !stop; count++) {
    // Forks are what is tested: the threads must not take all of the machine.
    if (count % 20 == 0) usleep(50);
    int at = (int)(next(&seed) % 64);
    free(slots[at]);
    uint64_t kind = next(&seed) % 100;
    size_t size = kind < 90 ? 1 + next(&seed) % 2000 : kind < 98 ? next(&seed) % 300000 : (1 << 20) + next(&seed) % 3000000;
    slots[at] = malloc(size);
    if (slots[at]) memset(slots[at], 1, size < 5000 ? size : 5000);
  }
  for (int i = 0; i < 64; i++) free(slots[i]);
  return NULL;
}

static void *short_lived(void *argument) {
  void *p = malloc(100000);
  free(p);
  return argument;
}

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 100, hangs = 0, failures = 0;
  pthread_t threads[8];
  for (uintptr_t i = 0; i < 8; i++) pthread_create(&threads[i], NULL, worker, (void *)(i + 1));
  for (int round = 0; round < rounds; round++) {
    if (round && round % 1000 == 0) fprintf(stderr, "%d forks, %d hangs, %d failures\n", round, hangs, failures);
    void *small = malloc(1000), *large = malloc(4 << 20);
    memset(large, 7, 4 << 20);
    pthread_t brief;
    pthread_create(&brief, NULL, short_lived, NULL);
    pid_t child = fork();
    if (child == 0) {
      alarm(60);
      free(small);
      if (((char *)large)[12345] != 7) _exit(3);
      free(large);
      for (int i = 0; i < 200; i++) {
        char *p = malloc((size_t)(i * 131));
        if (p) p[0] = 1;
        free(p);
      }
      char *p = calloc(1, 3 << 20);
      for (int i = 0; i < 3 << 20; i += 4096)
        if (p[i]) _exit(4);
      free(p);
      pthread_t thread;
      if (pthread_create(&thread, NULL, short_lived, NULL) == 0) pthread_join(thread, NULL);
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status) && WTERMSIG(status) == 14) hangs++;
    else if (status != 0) failures++;
    pthread_join(brief, NULL);
    free(small);
    free(large);
  }
  stop = 1;
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  printf("%d forks, %d hangs, %d failures\n", rounds, hangs, failures);
  return hangs || failures;
}
