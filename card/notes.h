/* The evidence of the card's answers, for the error bar of an estimate. A library that had to derive a size notes it
 * with its evidence, the function's name and the bytes that it answered. Sizes that torch's own host code computed need
 * no note: they are exact.
 *
 * plan      cuDNN's own heuristics answered
 * rule      a rule that was fitted to runs on a card
 * assumed   nothing is known: the answer is an assumption */

#ifndef GAPLESS_CARD_NOTES_H
#define GAPLESS_CARD_NOTES_H

#include <stddef.h>
#include <stdint.h>

enum evidence { BY_PLAN = 1, BY_RULE = 2, ASSUMED = 3 };

void card_note(enum evidence evidence, const char *function, uint64_t bytes);

/* One line a function and evidence into `out`: `evidence function calls largest`. Returns the length that it needs. */
size_t card_notes(char *out, size_t room);

#endif
