/* What the host has just copied to the card, so that it can be read back. The card stores nothing, but programs send
 * small things to it only to hand them to other ranks or to look at them again (DistributedDataParallel compares the
 * shapes of parameters in this way). A kernel might change any of it, so everything is forgotten when one starts. */

#ifndef GAPLESS_CARD_ECHO_H
#define GAPLESS_CARD_ECHO_H

#include <stddef.h>

void echo_store(const void *to, const void *from, size_t size);
/* Within the card. What is not known at `from` is not known at `to` either. */
void echo_move(const void *to, const void *from, size_t size);
/* Fills `to` where all of `from` is known; 0 where it is not. */
int echo_read(void *to, const void *from, size_t size);
void echo_forget(void);

#endif
