/* The table behind notes.h: a row for each function and evidence, under one lock. */

#include "notes.h"
#include "../torch-bench/standin/device.h"
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MOST_ROWS = 512 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { enum evidence evidence; const char *function; uint64_t calls, largest; } rows[MOST_ROWS];
static size_t row_count;

void card_note(enum evidence evidence, const char *function, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    size_t at = 0;
    while (at < row_count && (rows[at].evidence != evidence || strcmp(rows[at].function, function))) at++;
    if (at == MOST_ROWS) device_unexpected("too many notes");
    if (at == row_count) {
        rows[row_count].evidence = evidence;
        rows[row_count++].function = function;
    }
    rows[at].calls += 1;
    if (bytes > rows[at].largest) rows[at].largest = bytes;
    pthread_mutex_unlock(&lock);
}

size_t card_notes(char *out, size_t room) {
    static const char *const names[] = {"", "plan", "rule", "assumed"};
    size_t length = 0;
    pthread_mutex_lock(&lock);
    for (size_t at = 0; at < row_count; at++) {
        size_t left = length < room ? room - length : 0;
        length += (size_t)snprintf(left ? out + length : NULL, left, "%s %s %llu %llu\n", names[rows[at].evidence], rows[at].function,
                                   (unsigned long long)rows[at].calls, (unsigned long long)rows[at].largest);
    }
    pthread_mutex_unlock(&lock);
    return length;
}
