// A library as the manual of pthread_atfork describes it: its mutex is held across the fork, other threads allocate
// under it, and its handlers allocate too. The constructor registers them before the allocator's constructor runs.
#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *last;

static void change(size_t size) {
  free(last);
  last = malloc(size);
  if (!last) abort();
  ((char *)last)[size - 1] = 1;
}

void library_works(unsigned round) {
  pthread_mutex_lock(&mutex);
  // Sizes with and without locks of the allocator's.
  for (unsigned i = 0; i < 20; i++) change(round % 50 == 0 ? (size_t)2 << 20 : (size_t)(round * 131 + i * 977) % 60000 + 1);
  pthread_mutex_unlock(&mutex);
}

static void *allocates(void *argument) {
  for (int i = 0; i < 50; i++) free(malloc((size_t)i * 4001 + 1));
  return argument;
}

static void prepare(void) {
  pthread_mutex_lock(&mutex);
  change(5000);
  // A thread that allocates is waited for.
  pthread_t thread;
  if (!pthread_create(&thread, NULL, allocates, NULL)) pthread_join(thread, NULL);
}

static void parent(void) {
  change(70000);
  pthread_mutex_unlock(&mutex);
}

static void child(void) {
  change(90000);
  pthread_mutex_unlock(&mutex);
}

__attribute__((constructor)) static void begin(void) { pthread_atfork(prepare, parent, child); }
