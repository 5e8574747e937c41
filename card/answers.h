/* Words for the libraries of the card: functions that do nothing to memory, and functions that have no answer.
 *
 * DOES_NOTHING   The real function computes on the card or keeps a setting. It changes no memory of the program.
 * NOT_KNOWN      The effect of the real function on memory is not known, so a program that calls it is ended, with the
 *                function's name. A silent zero would look like an answer.
 * HANDLES        Functions that make and drop a handle, which the program only passes on. */

#ifndef GAPLESS_CARD_ANSWERS_H
#define GAPLESS_CARD_ANSWERS_H

#include "../torch-bench/standin/device.h"
#include <stdlib.h>

#define DOES_NOTHING(name) int name(void) { return 0; }
#define NOT_KNOWN(name) int name(void) { device_unexpected(#name " was called, which the card has no answer for"); }

/* A handle that is not NULL and is never dereferenced. */
#define HANDLES(make, drop)                                     \
    int make(void **out) { *out = calloc(1, 64); return 0; }    \
    int drop(void *handle) { free(handle); return 0; }

#endif
