/* Several cards in one process (GAPLESS_CARDS), which reach each other if STANDIN_PEERS is set: the card of each
 * mapping, and the cards that may use it. With one card nothing is noted.
 *
 * With STANDIN_ADDRESSES a reserved range also takes as many addresses of the process, as a driver's does: a limit of
 * these (RLIMIT_AS) is met. */

#define _GNU_SOURCE
#include "../../card/properties.h"
#include "card.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MOST_PAGES = 65536 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* The card of each page, by its handle. */
static unsigned char owners[MOST_PAGES];
/* The mappings, by address; a bit of `users` for each card that may use it. */
static struct mapped { uint64_t start, end; unsigned users; int owner; } *mapped;
static size_t count, room;
static struct range { uint64_t addr; void *at; size_t size; } *ranges;
static size_t range_count, range_room;

int card_is_one_of_several(void) { return card_count() > 1; }
int card_reach_each_other(int a, int b) {
    return a != b && a >= 0 && b >= 0 && a < card_count() && b < card_count() && getenv("STANDIN_PEERS") != NULL;
}

static void *grown(void *list, size_t *size, size_t each) {
    *size = *size ? 2 * *size : 256;
    list = realloc(list, *size * each);
    if (!list) device_unexpected("no host memory");
    return list;
}

/* The first range that ends behind `addr`. */
static size_t find(uint64_t addr) {
    size_t from = 0, to = count;
    while (from < to) {
        size_t middle = (from + to) / 2;
        if (mapped[middle].end <= addr) from = middle + 1;
        else to = middle;
    }
    return from;
}

void card_created(uint64_t handle, int card) {
    if (handle < MOST_PAGES) owners[handle] = (unsigned char)card;
}

void card_mapped(uint64_t addr, uint64_t size, uint64_t handle) {
    if (!card_is_one_of_several()) return;
    pthread_mutex_lock(&lock);
    if (count == room) mapped = grown(mapped, &room, sizeof *mapped);
    size_t at = find(addr);
    memmove(mapped + at + 1, mapped + at, (count - at) * sizeof *mapped);
    mapped[at] = (struct mapped){addr, addr + size, 0, handle < MOST_PAGES ? owners[handle] : 0};
    count += 1;
    pthread_mutex_unlock(&lock);
}

void card_unmapped(uint64_t addr, uint64_t size) {
    if (!card_is_one_of_several()) return;
    pthread_mutex_lock(&lock);
    size_t from = find(addr), to = from;
    while (to < count && mapped[to].start < addr + size) to++;
    memmove(mapped + from, mapped + to, (count - to) * sizeof *mapped);
    count -= to - from;
    pthread_mutex_unlock(&lock);
}

/* Lets a card use a range, or not any more. CUDA's status: a card that cannot reach the memory, or a gap in it. */
int card_granted(uint64_t addr, uint64_t size, int card, int flags) {
    if (!card_is_one_of_several()) return SUCCESS;
    int result = card < 0 || card >= card_count() ? INVALID_DEVICE : SUCCESS;
    uint64_t next = addr;
    pthread_mutex_lock(&lock);
    for (size_t at = find(addr); result == SUCCESS && at < count && next < addr + size; at++) {
        if (mapped[at].start > next) break;
        if (mapped[at].owner != card && !card_reach_each_other(card, mapped[at].owner)) result = INVALID_DEVICE;
        else if (flags) mapped[at].users |= 1u << card;
        else mapped[at].users &= ~(1u << card);
        next = mapped[at].end;
    }
    pthread_mutex_unlock(&lock);
    return result == SUCCESS && next < addr + size ? INVALID_VALUE : result;
}

/* True if a kernel of this card could use these bytes, for tests. */
int card_can_use(int card, uint64_t addr, uint64_t size) {
    if (addr >= DEVICE_SEGMENTS && addr < DEVICE_RANGES) return 1;
    uint64_t next = addr;
    pthread_mutex_lock(&lock);
    for (size_t at = find(addr); at < count && next < addr + size && mapped[at].start <= next && mapped[at].users >> card & 1; at++)
        next = mapped[at].end;
    pthread_mutex_unlock(&lock);
    return next >= addr + size;
}

/* The card whose memory is mapped at an address; 0 if it is not known. */
int card_of_address(uint64_t addr) {
    pthread_mutex_lock(&lock);
    size_t at = find(addr);
    int owner = at < count && mapped[at].start <= addr ? mapped[at].owner : 0;
    pthread_mutex_unlock(&lock);
    return owner;
}

/* ---- addresses ---- */

/* True if the process has so many addresses left. */
int card_reserved(uint64_t addr, uint64_t size) {
    if (!getenv("STANDIN_ADDRESSES")) return 1;
    void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return 0;
    pthread_mutex_lock(&lock);
    if (range_count == range_room) ranges = grown(ranges, &range_room, sizeof *ranges);
    ranges[range_count++] = (struct range){addr, at, size};
    pthread_mutex_unlock(&lock);
    return 1;
}

void card_unreserved(uint64_t addr) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < range_count; i++) {
        if (ranges[i].addr != addr) continue;
        munmap(ranges[i].at, ranges[i].size);
        ranges[i] = ranges[--range_count];
        break;
    }
    pthread_mutex_unlock(&lock);
}
