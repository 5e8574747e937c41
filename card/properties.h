/* The properties of the card: attributes, name, memory. They come from the file that GAPLESS_CARD names, one property
 * a line (python/gapless/cards/h200.card is an example):
 *
 *   name NVIDIA H200            what programs print
 *   memory 150109880320         bytes that a program can see
 *   kernels 90                  the architecture whose kernels torch's wheels run on this card
 *   attribute 16 132            an attribute by its CUDA number
 *   outside, measured           for the Python package, which reads the same file
 *
 * Without the file the card is the bench's: the few attributes that its tests need, and the rest 0. */

#ifndef GAPLESS_CARD_PROPERTIES_H
#define GAPLESS_CARD_PROPERTIES_H

#include <stdint.h>

/* CUDA's numbers of the attributes that are read by name here. */
enum { PROCESSORS = 16, L2_CACHE = 38, MAJOR = 75, MINOR = 76 };

/* True if a file was named. Without one the caller keeps to its own answers. */
int card_described(void);
int card_attribute(int number);
const char *card_name(void);
/* The bytes that a program sees as the card's; 0 if the file does not say. */
uint64_t card_memory(void);
int card_kernels(void);
/* How many cards a program sees: GAPLESS_CARDS, 1 if it is not set. Each is a card of the same kind. */
int card_count(void);

#endif
