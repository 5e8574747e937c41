/* A test double of the library's C ABI: every request straight to the card, everything counted. It tests the Python
 * side without the allocator, and shows the hooks' calls in the statistics, below "double.".
 *
 * Not here: OutOfMemoryError (a request that fails gives a null pointer) and the overlay (it says that it knows no
 * torch). A forked child touches nothing of its parent's. GAPLESS_LIBRARY=<this file> loads it; an option `limit=1`
 * makes enable fail. */

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int cuMemAlloc_v2(uint64_t *out, size_t size);
int cuMemFree_v2(uint64_t addr);

typedef struct { uint64_t first, second; } pool_id;

enum { INIT, RESET, FRACTION, BASE, RECORD, BEGIN, END, RELEASE, TRIM, RESERVE, HOOKS };
static const char *const NAMES[HOOKS] = {"init", "reset", "fraction", "base", "record_stream", "begin_pool", "end_pool", "release_pool",
                                         "trim", "reserve"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { int64_t current, peak, allocated, freed; } count, bytes;
static uint64_t calls[HOOKS], ooms, strangers;
static char options[1024];
static pid_t owner;

static void called(int hook) { __atomic_add_fetch(&calls[hook], 1, __ATOMIC_RELAXED); }

static const char *error = "";
const char *gapless_last_error(void) { return error; }

int gapless_enable(const char *text) {
    owner = getpid();
    snprintf(options, sizeof options, "%s", text);
    error = "the double was told to fail";
    return strcmp(text, "limit=1") == 0 ? -1 : 0;
}

void *gapless_alloc(size_t size, int device, void *stream) {
    (void)device; (void)stream;
    uint64_t addr = 0;
    if (size == 0) return NULL;
    pthread_mutex_lock(&lock);
    if (cuMemAlloc_v2(&addr, size)) {
        addr = 0;
        ooms += 1;
    } else {
        count.allocated += 1;
        bytes.allocated += (int64_t)size;
        if (++count.current > count.peak) count.peak = count.current;
        if ((bytes.current += (int64_t)size) > bytes.peak) bytes.peak = bytes.current;
    }
    pthread_mutex_unlock(&lock);
    return (void *)addr;
}

void gapless_free(void *addr, size_t size, int device, void *stream) {
    (void)device; (void)stream;
    if (!addr) return;
    if (getpid() != owner) {
        __atomic_add_fetch(&strangers, 1, __ATOMIC_RELAXED);
        return;
    }
    pthread_mutex_lock(&lock);
    cuMemFree_v2((uint64_t)addr);
    count.current -= 1;
    count.freed += 1;
    bytes.current -= (int64_t)size;
    bytes.freed += (int64_t)size;
    pthread_mutex_unlock(&lock);
}

void gapless_init(int devices) { (void)devices; called(INIT); }
void gapless_reset(void) { called(RESET); }
void gapless_memory_fraction(double fraction, int device) { (void)fraction; (void)device; called(FRACTION); }
void *gapless_base_alloc(void *addr, size_t *size) { (void)size; called(BASE); return addr; }
void gapless_record_stream(void *addr, void *stream) { (void)addr; (void)stream; called(RECORD); }
void gapless_begin_pool(int device, pool_id id, void *filter) { (void)device; (void)id; (void)filter; called(BEGIN); }
void gapless_end_pool(int device, pool_id id) { (void)device; (void)id; called(END); }
void gapless_release_pool(int device, pool_id id) { (void)device; (void)id; called(RELEASE); }
size_t gapless_trim(int device) { (void)device; called(TRIM); return 0; }
int gapless_reserve(int device, uint64_t size) { (void)device; called(RESERVE); return size > (uint64_t)1 << 40 ? -1 : 0; }
int gapless_overlay(const char *version, const char *git) {
    (void)version; (void)git;
    error = "the double knows no torch";
    return 1;
}

void gapless_reset_peaks(int device) {
    (void)device;
    pthread_mutex_lock(&lock);
    count.peak = count.current;
    bytes.peak = bytes.current;
    pthread_mutex_unlock(&lock);
}

size_t gapless_stats_json(int device, char *out, size_t room) {
    (void)device;
    char text[8192];
    size_t at = 0;
#define SAY(...) at += (size_t)snprintf(text + at, sizeof text - at, __VA_ARGS__)
    static const char *const AMOUNTS[] = {"allocated_bytes", "requested_bytes", "active_bytes", "reserved_bytes", "allocation", "active",
                                          "segment"};
    pthread_mutex_lock(&lock);
    SAY("{");
    for (size_t i = 0; i < sizeof AMOUNTS / sizeof *AMOUNTS; i++) {
        const int64_t *four = i < 4 ? &bytes.current : &count.current;
        static const char *const PARTS[] = {"current", "peak", "allocated", "freed"};
        for (int p = 0; p < 4; p++) SAY("\"%s.all.%s\": %lld, ", AMOUNTS[i], PARTS[p], (long long)four[p]);
    }
    SAY("\"num_alloc_retries\": 0, \"num_ooms\": %llu, ", (unsigned long long)ooms);
    SAY("\"num_device_alloc\": %lld, \"num_device_free\": %lld, ", (long long)count.allocated, (long long)count.freed);
    SAY("\"gapless.pages_harvested\": 0, \"gapless.driver_ns\": 0, \"double.strangers\": %llu, ", (unsigned long long)strangers);
    for (int i = 0; i < HOOKS; i++) SAY("\"double.%s\": %llu, ", NAMES[i], (unsigned long long)calls[i]);
    SAY("\"double.options\": \"%s\"}", options);
    pthread_mutex_unlock(&lock);
    if (room) snprintf(out, room, "%s", text);
    return at;
}
