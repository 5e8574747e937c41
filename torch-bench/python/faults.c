/* Driver calls that are counted for each thread, calls that fail when a test asks for it, and addresses that may only
 * be read. */

#include "card.h"
#include <pthread.h>
#include <string.h>

enum { FAULT = 999, READ_ONLY = 1, MOST_RANGES = 4096 };

static __thread uint64_t calls;
static int64_t left = -1;
static int faults;

/* Each function of the driver that can fail and has to do with memory comes here first. Not 0: it fails with that. */
int card_enter(void) {
    calls += 1;
    if (__atomic_load_n(&left, __ATOMIC_RELAXED) < 0 || __atomic_fetch_sub(&left, 1, __ATOMIC_RELAXED) != 0) return SUCCESS;
    __atomic_add_fetch(&faults, 1, __ATOMIC_RELAXED);
    return FAULT;
}

/* For tests: the calls of this thread; that the call after `count` others fails, or none (-1); how many have failed. */
uint64_t card_calls(void) { return calls; }
void card_fail_in(int64_t count) { __atomic_store_n(&left, count, __ATOMIC_RELAXED); }
int card_faults(void) { return faults; }

/* ---- what may only be read ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { uint64_t start, end; } ranges[MOST_RANGES];
static size_t count;

struct access { int kind, id, flags; };

int cuMemSetAccess(uint64_t addr, size_t size, const void *descriptors, size_t descriptor_count) {
    int fault = card_enter();
    if (fault) return fault;
    struct access first = {0, 0, 0};
    if (descriptor_count) memcpy(&first, descriptors, sizeof first);
    for (size_t i = 0; i < descriptor_count; i++) {
        struct access one = ((const struct access *)descriptors)[i];
        int refused = card_granted(addr, size, one.id, one.flags);
        if (refused) return refused;
    }
    pthread_mutex_lock(&lock);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (ranges[i].end <= addr || ranges[i].start >= addr + size) ranges[kept++] = ranges[i];
    }
    count = kept;
    if (first.flags == READ_ONLY) {
        if (count == MOST_RANGES) device_unexpected("too many ranges that may only be read");
        ranges[count].start = addr;
        ranges[count++].end = addr + size;
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int card_is_read_only(uint64_t addr) {
    int found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && !found; i++) found = ranges[i].start <= addr && addr < ranges[i].end;
    pthread_mutex_unlock(&lock);
    return found;
}
