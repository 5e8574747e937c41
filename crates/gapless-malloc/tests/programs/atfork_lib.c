// A library whose constructor registers handlers around a fork that allocate. It is loaded before the allocator's own
// constructor runs, so its `prepare` runs after the allocator's, and its `child` before the allocator's.
#include <pthread.h>
#include <stdlib.h>

static void *held[32];

static void churn(size_t from) {
  for (int i = 0; i < 32; i++) {
    size_t size = i % 8 == 7 ? (size_t)(i + 3) << 17 : from + (size_t)i * 131;
    free(held[i]);
    held[i] = malloc(size);
    if (!held[i]) abort();
    ((char *)held[i])[size - 1] = 1;
  }
}

static void prepare(void) { churn(2500); }
static void parent(void) { churn(11000); }
static void child(void) { churn(19000); }

__attribute__((constructor)) static void begin(void) { pthread_atfork(prepare, parent, child); }

int handlers_are_registered(void) { return 1; }
