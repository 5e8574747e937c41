// A library whose constructor waits for a thread that starts another one, and whose memory others free.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static void *inner(void *argument) {
  free(malloc(2 << 20));
  return argument;
}

static void *outer(void *argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, inner, NULL)) abort();
  pthread_join(thread, NULL);
  return argument;
}

static void *kept;
__attribute__((constructor)) static void begin(void) {
  outer(NULL);
  pthread_t thread;
  if (pthread_create(&thread, NULL, outer, NULL)) abort();
  pthread_join(thread, NULL);
  kept = malloc(50000);
}

__attribute__((destructor)) static void end(void) {
  free(kept);
  free(realloc(malloc(3 << 20), 5 << 20));
}

char *made_by_the_library(size_t size) { return memset(malloc(size), 5, size); }
