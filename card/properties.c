/* The reader behind properties.h. A line that it cannot read ends the process: a card that is half described would give
 * answers that look right. */

#define _GNU_SOURCE
#include "properties.h"
#include "../torch-bench/standin/device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ATTRIBUTES = 256 };

static struct {
    int described, kernels, count, attributes[MOST_ATTRIBUTES];
    char name[128];
    uint64_t memory;
} card;

static void read_line(const char *line) {
    int number, value;
    unsigned long long bytes;
    if (line[0] == '#' || line[0] == '\n' || line[0] == 0) return;
    if (sscanf(line, "attribute %d %d", &number, &value) == 2 && number >= 0 && number < MOST_ATTRIBUTES) card.attributes[number] = value;
    else if (sscanf(line, "memory %llu", &bytes) == 1) card.memory = bytes;
    else if (sscanf(line, "kernels %d", &value) == 1) card.kernels = value;
    else if (sscanf(line, "name %127[^\n]", card.name) == 1 || !strncmp(line, "outside ", 8) || !strncmp(line, "measured ", 9)) return;
    else device_unexpected("a line of the file in GAPLESS_CARD is no property");
}

/* Before the constructors that have no order, which open the card. */
__attribute__((constructor(101))) static void read_file(void) {
    const char *path = getenv("GAPLESS_CARD"), *cards = getenv("GAPLESS_CARDS");
    card.count = cards ? atoi(cards) : 1;
    if (card.count < 1) device_unexpected("GAPLESS_CARDS is no number of cards");
    if (!path || !*path) return;
    FILE *file = fopen(path, "r");
    if (!file) device_unexpected("the file in GAPLESS_CARD cannot be read");
    char line[512];
    while (fgets(line, sizeof line, file)) read_line(line);
    fclose(file);
    card.described = 1;
}

int card_described(void) { return card.described; }
int card_attribute(int number) { return number >= 0 && number < MOST_ATTRIBUTES ? card.attributes[number] : 0; }
const char *card_name(void) { return card.name; }
uint64_t card_memory(void) { return card.memory; }
int card_kernels(void) { return card.kernels; }
int card_count(void) { return card.count; }
