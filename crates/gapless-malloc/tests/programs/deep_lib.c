// A library that is loaded with RTLD_DEEPBIND.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static char *begun;

__attribute__((constructor)) static void begin(void) { begun = strdup("allocated when it was loaded"); }

char *made_by_the_library(size_t size) { return memset(malloc(size), 3, size); }

void freed_by_the_library(void *block) { free(block); }

static void *thread(void *text) {
    free(text);
    return malloc(100);
}

int threads_of_the_library(void) {
    for (int i = 0; i < 50; i++) {
        pthread_t one;
        void *made;
        if (pthread_create(&one, NULL, thread, strdup("for the thread")) || pthread_join(one, &made) || !made)
            return 1;
        free(made);
    }
    free(begun);
    begun = NULL;
    return 0;
}
