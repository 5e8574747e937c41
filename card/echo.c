/* The list behind echo.h: the latest copies, under one lock; a later one lies over an earlier one. */

#include "echo.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, LARGEST = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uintptr_t at; size_t size; unsigned char *bytes; } kept[MOST];
static int count;

static void drop(int number) {
    free(kept[number].bytes);
    count -= 1;
    memmove(&kept[number], &kept[number + 1], (size_t)(count - number) * sizeof kept[0]);
}

/* A copy that overlaps is dropped whole: half of it would be wrong. */
static void cover(uintptr_t at, size_t size) {
    for (int i = count - 1; i >= 0; i--) {
        if (kept[i].at < at + size && at < kept[i].at + kept[i].size) drop(i);
    }
}

static void keep(uintptr_t at, const void *from, size_t size) {
    if (!size || size > LARGEST) return;
    unsigned char *bytes = malloc(size);
    if (!bytes) return;
    if (count == MOST) drop(0);
    memcpy(bytes, from, size);
    kept[count].at = at;
    kept[count].size = size;
    kept[count++].bytes = bytes;
}

static const unsigned char *find(uintptr_t at, size_t size) {
    for (int i = count - 1; i >= 0; i--) {
        if (kept[i].at <= at && at + size <= kept[i].at + kept[i].size) return kept[i].bytes + (at - kept[i].at);
    }
    return NULL;
}

void echo_store(const void *to, const void *from, size_t size) {
    pthread_mutex_lock(&lock);
    cover((uintptr_t)to, size);
    keep((uintptr_t)to, from, size);
    pthread_mutex_unlock(&lock);
}

void echo_move(const void *to, const void *from, size_t size) {
    pthread_mutex_lock(&lock);
    const unsigned char *found = to == from ? NULL : find((uintptr_t)from, size);
    unsigned char *copy = found && size <= LARGEST ? malloc(size) : NULL;
    if (copy) memcpy(copy, found, size);
    if (to != from) cover((uintptr_t)to, size);
    if (copy) keep((uintptr_t)to, copy, size);
    free(copy);
    pthread_mutex_unlock(&lock);
}

int echo_read(void *to, const void *from, size_t size) {
    pthread_mutex_lock(&lock);
    const unsigned char *found = find((uintptr_t)from, size);
    if (found) memcpy(to, found, size);
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

void echo_forget(void) {
    pthread_mutex_lock(&lock);
    while (count) drop(count - 1);
    pthread_mutex_unlock(&lock);
}
