/* Keeps the bytes that the host has just copied to the card, so that they can be read back. The card stores nothing,
 * but programs send small things to it only to hand them to other ranks or to look at them again (as
 * DistributedDataParallel compares shapes of parameters). A kernel may change any of it, so its start drops all. */

#ifndef GAPLESS_CARD_ECHO_H
#define GAPLESS_CARD_ECHO_H

#include <stddef.h>

void echo_store(const void *to, const void *from, size_t size);
/* Within the card. Bytes that are not known at `from` are not known at `to` either. */
void echo_move(const void *to, const void *from, size_t size);
/* Fills `to` if all of `from` is known; else returns 0. */
int echo_read(void *to, const void *from, size_t size);
void echo_forget(void);

#endif
