/* The state behind device.h: sorted arrays of ranges, a table of physical handles, one queue of incomplete events a
 * stream. Every public function takes one lock, since a process with Python in it has several threads. Anything a real
 * driver would refuse (a pointer never given, a range mapped twice) ends the process. */

#define _GNU_SOURCE
#include "device.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { uint64_t start, end, size, handle; } range;      /* [start, end) taken; size as asked for */
typedef struct { range *at; size_t count, room; } ranges;

typedef struct { uint64_t size; int released, mappings, imported; } handle;

struct device_event { device_event *next; uint64_t stream, tick; int incomplete, captured; };
typedef struct { uint64_t stream; device_event *first, *last; int captures; } queue;

static struct {
    uint64_t capacity, used, pending, tick;
    ranges segments, reserved, mapped;
    handle *handles;
    size_t handle_count, handle_room;
    size_t *free_handles;
    size_t free_handle_count;
    queue *queues;
    size_t queue_count, queue_room;
    device_watcher watcher;
    void (*gone)(uint64_t id);
} device;

/* Recursive: public functions call each other, and a watcher may ask for figures. */
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static int lock_taken(void) { pthread_mutex_lock(&lock); return 0; }
static void lock_given(int *held) { (void)held; pthread_mutex_unlock(&lock); }
#define LOCKED __attribute__((cleanup(lock_given), unused)) int held = lock_taken()

void device_unexpected(const char *what) {
    fprintf(stderr, "stand-in device: %s\n", what);
    fflush(stderr);
    _Exit(70);
}

static void *grown(void *old, size_t *room, size_t item) {
    *room = *room ? *room * 2 : 64;
    void *fresh = realloc(old, *room * item);
    if (!fresh) device_unexpected("no host memory");
    return fresh;
}

static uint64_t rounded(uint64_t size) { return (size + DEVICE_GRANULE - 1) / DEVICE_GRANULE * DEVICE_GRANULE; }

/* ---- ranges: by address, disjoint ---- */

static void range_insert(ranges *set, size_t index, range value) {
    if (set->count == set->room) set->at = grown(set->at, &set->room, sizeof(range));
    memmove(set->at + index + 1, set->at + index, (set->count - index) * sizeof(range));
    set->at[index] = value;
    set->count += 1;
}

/* The first range that starts at or above `addr`. */
static size_t range_find(const ranges *set, uint64_t addr) {
    size_t low = 0, high = set->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (set->at[middle].start < addr) low = middle + 1; else high = middle;
    }
    return low;
}

static range range_remove(ranges *set, uint64_t addr, const char *complaint) {
    size_t index = range_find(set, addr);
    if (index == set->count || set->at[index].start != addr) device_unexpected(complaint);
    range found = set->at[index];
    set->count -= 1;
    memmove(set->at + index, set->at + index + 1, (set->count - index) * sizeof(range));
    return found;
}

static uint64_t aligned(uint64_t addr, uint64_t alignment) { return (addr + alignment - 1) / alignment * alignment; }

static uint64_t place_lowest(ranges *set, uint64_t base, uint64_t size, uint64_t alignment) {
    uint64_t length = rounded(size), start = aligned(base, alignment);
    size_t index = 0;
    for (; index < set->count; index++) {
        if (set->at[index].start >= start && set->at[index].start - start >= length) break;
        start = aligned(set->at[index].end, alignment);
    }
    range_insert(set, index, (range){start, start + length, size, 0});
    return start;
}

/* The driver places segments so, as recordings of cards show (testdata/traces): it takes chunks of whole 32 MiB from
   the top down, and fills what is left of them, the smallest gap first. torch takes the lowest of free blocks of one
   size, so the order of addresses decides what it reserves. */
#define CHUNK ((uint64_t)32 << 20)
static ranges chunks;
static int places_as_driver;

/* The start of the smallest gap of a chunk that has room for `length`; 0 if there is none. */
static uint64_t gap_in_chunks(const ranges *set, uint64_t length) {
    uint64_t best = UINT64_MAX, found = 0;
    for (size_t c = 0; c < chunks.count; c++) {
        uint64_t from = chunks.at[c].start, end = chunks.at[c].end;
        for (size_t index = range_find(set, from); from < end; index++) {
            int last = index == set->count || set->at[index].start >= end;
            uint64_t room = (last ? end : set->at[index].start) - from;
            if (room >= length && room < best) { best = room; found = from; }
            from = last ? end : set->at[index].end;
        }
    }
    return found;
}

static uint64_t place_as_driver(ranges *set, uint64_t top, uint64_t size) {
    uint64_t length = rounded(size), start = gap_in_chunks(set, length);
    if (!start) {
        uint64_t whole = aligned(length, CHUNK);
        size_t c = chunks.count;
        for (; c > 0 && top - chunks.at[c - 1].end < whole; c--) top = chunks.at[c - 1].start;
        start = top - whole;
        range_insert(&chunks, c, (range){start, top, whole, 0});
    }
    range_insert(set, range_find(set, start), (range){start, start + length, size, 0});
    return start;
}

/* Gives back the chunk around `addr` if nothing is left in it. */
static void leave_chunk(const ranges *set, uint64_t addr) {
    for (size_t c = 0; c < chunks.count; c++) {
        if (addr < chunks.at[c].start || addr >= chunks.at[c].end) continue;
        size_t index = range_find(set, chunks.at[c].start);
        if (index == set->count || set->at[index].start >= chunks.at[c].end)
            range_remove(&chunks, chunks.at[c].start, "a chunk that is not there");
        return;
    }
}

/* ---- memory ---- */

void device_open(uint64_t capacity, device_watcher watcher) {
    LOCKED;
    device.capacity = capacity;
    device.watcher = watcher;
}

uint64_t device_capacity(void) { LOCKED; return device.capacity; }
uint64_t device_used(void) { LOCKED; return device.used; }
uint64_t device_pending(void) { LOCKED; return device.pending; }

static int charge(uint64_t size) {
    if (size > device.capacity - device.used) return 0;
    device.used += size;
    return 1;
}

void device_place_as_driver(void) { LOCKED; places_as_driver = 1; }

uint64_t device_malloc(uint64_t size) {
    LOCKED;
    if (!charge(size)) return 0;
    if (places_as_driver) return place_as_driver(&device.segments, DEVICE_SYMBOLS, size);
    return place_lowest(&device.segments, DEVICE_SEGMENTS, size, DEVICE_GRANULE);
}

void device_free(uint64_t addr) {
    LOCKED;
    if (!addr) return;
    device.used -= range_remove(&device.segments, addr, "cudaFree of an address that cudaMalloc did not give").size;
    if (places_as_driver) leave_chunk(&device.segments, addr);
}

static uint64_t handle_new(uint64_t size, int imported) {
    size_t index;
    if (device.free_handle_count) {
        index = device.free_handles[--device.free_handle_count];
    } else {
        if (device.handle_count == device.handle_room) {
            device.handles = grown(device.handles, &device.handle_room, sizeof(handle));
            device.free_handles = realloc(device.free_handles, device.handle_room * sizeof(size_t));
            if (!device.free_handles) device_unexpected("no host memory");
        }
        index = device.handle_count++;
    }
    device.handles[index] = (handle){size, 0, 0, imported};
    return index + 1;
}

uint64_t device_create(uint64_t size) {
    LOCKED;
    if (size == 0 || size % DEVICE_GRANULE) device_unexpected("cuMemCreate of a size that is no multiple of 2 MiB");
    return charge(size) ? handle_new(size, 0) : 0;
}

uint64_t device_import(uint64_t size) { LOCKED; return handle_new(size, 1); }

void device_watch_handles(void (*gone)(uint64_t id)) { LOCKED; device.gone = gone; }

static handle *handle_of(uint64_t id) {
    if (id == 0 || id > device.handle_count || device.handles[id - 1].size == 0) device_unexpected("a handle that does not exist");
    return &device.handles[id - 1];
}

static void handle_settle(uint64_t id) {
    handle *h = handle_of(id);
    if (!h->released || h->mappings) return;
    if (!h->imported) device.used -= h->size;
    if (device.gone) device.gone(id);
    h->size = 0;
    device.free_handles[device.free_handle_count++] = id - 1;
}

uint64_t device_handle_size(uint64_t id) { LOCKED; return handle_of(id)->size; }

void device_release(uint64_t id) {
    LOCKED;
    handle *h = handle_of(id);
    if (h->released) device_unexpected("cuMemRelease of a released handle");
    h->released = 1;
    handle_settle(id);
}

uint64_t device_reserve(uint64_t size, uint64_t alignment) {
    LOCKED;
    return place_lowest(&device.reserved, DEVICE_RANGES, size, alignment > DEVICE_GRANULE ? alignment : DEVICE_GRANULE);
}

void device_unreserve(uint64_t addr, uint64_t size) {
    LOCKED;
    size_t index = range_find(&device.mapped, addr);
    if (index < device.mapped.count && device.mapped.at[index].start < addr + size) {
        device_unexpected("cuMemAddressFree of a range that is still mapped");
    }
    range found = range_remove(&device.reserved, addr, "cuMemAddressFree of an address that was not reserved");
    if (found.size != size) device_unexpected("cuMemAddressFree of a part of a range");
}

void device_map(uint64_t addr, uint64_t size, uint64_t id) {
    LOCKED;
    handle *h = handle_of(id);
    if (h->size != size) device_unexpected("cuMemMap of a part of a handle");
    size_t index = range_find(&device.mapped, addr);
    int after = index < device.mapped.count && device.mapped.at[index].start < addr + size;
    int before = index > 0 && device.mapped.at[index - 1].end > addr;
    if (after || before) device_unexpected("cuMemMap over a mapped range");
    h->mappings += 1;
    range_insert(&device.mapped, index, (range){addr, addr + size, size, id});
}

void device_unmap(uint64_t addr, uint64_t size) {
    LOCKED;
    uint64_t end = addr + size;
    while (addr < end) {
        range found = range_remove(&device.mapped, addr, "cuMemUnmap of a range that is not mapped");
        if (found.end > end) device_unexpected("cuMemUnmap of a part of a handle");
        addr = found.end;
        handle_of(found.handle)->mappings -= 1;
        handle_settle(found.handle);
    }
}

uint64_t device_behind(uint64_t addr, uint64_t *offset, uint64_t *left) {
    LOCKED;
    size_t index = range_find(&device.mapped, addr + 1);
    if (index == 0 || device.mapped.at[index - 1].end <= addr) return 0;
    range found = device.mapped.at[index - 1];
    *offset = addr - found.start;
    *left = found.end - addr;
    return found.handle;
}

int device_in_segment(uint64_t addr, uint64_t size) {
    LOCKED;
    size_t index = range_find(&device.segments, addr + 1);
    return index > 0 && device.segments.at[index - 1].end >= addr + size;
}

/* ---- events ---- */

static queue *queue_of(uint64_t stream) {
    for (size_t i = 0; i < device.queue_count; i++) {
        if (device.queues[i].stream == stream) return &device.queues[i];
    }
    if (device.queue_count == device.queue_room) device.queues = grown(device.queues, &device.queue_room, sizeof(queue));
    device.queues[device.queue_count] = (queue){stream, NULL, NULL, 0};
    return &device.queues[device.queue_count++];
}

void device_capture(uint64_t stream, int captures) { LOCKED; queue_of(stream)->captures = captures; }

int device_captures(uint64_t stream) { LOCKED; return queue_of(stream)->captures; }

/* All that was recorded up to the operation `tick`, that operation's own included. */
static void complete_through(queue *q, uint64_t tick) {
    while (q->first && q->first->tick <= tick) {
        device_event *event = q->first;
        q->first = event->next;
        if (!q->first) q->last = NULL;
        event->next = NULL;
        event->incomplete = 0;
        device.pending -= 1;
    }
}

static void watch(uint32_t what, uint64_t stream, uint64_t ready) {
    if (device.watcher) device.watcher(what, stream, ready);
}

device_event *device_event_new(void) {
    LOCKED;
    device_event *event = calloc(1, sizeof *event);
    if (!event) device_unexpected("no host memory");
    return event;
}

void device_event_forget(device_event *event) {
    LOCKED;
    if (!event->incomplete) return;
    queue *q = queue_of(event->stream);
    device_event **link = &q->first, *before = NULL;
    while (*link != event) {
        before = *link;
        link = &before->next;
    }
    *link = event->next;
    if (q->last == event) q->last = before;
    event->next = NULL;
    event->incomplete = 0;
    device.pending -= 1;
}

void device_event_delete(device_event *event) {
    LOCKED;
    if (event->incomplete) device_unexpected("cudaEventDestroy of an incomplete event");
    free(event);
}

void device_event_record(device_event *event, uint64_t stream) {
    LOCKED;
    if (event->incomplete) device_unexpected("cudaEventRecord of an incomplete event");
    queue *q = queue_of(stream);
    event->stream = stream;
    event->tick = device.tick;
    event->incomplete = 1;
    if (q->last) q->last->next = event; else q->first = event;
    q->last = event;
    device.pending += 1;
}


uint64_t device_event_stream(device_event *event) { return event->stream; }

void device_event_capture(device_event *event, int captured) { LOCKED; event->captured = captured; }

int device_event_captured(device_event *event) { LOCKED; return event->captured; }

int device_event_query(device_event *event) {
    LOCKED;
    watch(DEVICE_POLL, event->stream, !event->incomplete);
    return !event->incomplete;
}

void device_event_sync(device_event *event) {
    LOCKED;
    watch(DEVICE_EVENT_SYNC, event->stream, !event->incomplete);
    if (!event->incomplete) return;
    uint64_t tick = event->tick;
    complete_through(queue_of(event->stream), tick);
}

void device_tick(void) { LOCKED; device.tick += 1; }

void device_complete(uint64_t stream, uint64_t count) {
    LOCKED;
    queue *q = queue_of(stream);
    while (count-- && q->first) complete_through(q, q->first->tick);
}

void device_stream_sync(uint64_t stream) {
    LOCKED;
    watch(DEVICE_STREAM_SYNC, stream, 0);
    device_complete(stream, UINT64_MAX);
}

void device_sync(void) {
    LOCKED;
    watch(DEVICE_SYNC, 0, 0);
    for (size_t i = 0; i < device.queue_count; i++) device_complete(device.queues[i].stream, UINT64_MAX);
}
