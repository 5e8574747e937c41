/* CUDA's runtime functions by name, for stock torch in Python: preloaded under a name of its own, so that these win and
 * the real runtime library still loads for the rest (the registration of kernels). Kernels and copies do nothing. */

#define _GNU_SOURCE
#include "../../card/echo.h"
#include "../../card/graph_objects.h"
#include "../../card/properties.h"
#include "card.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread int last_error;

static int fail(int error) { return last_error = error; }

/* ---- device ---- */

int cuCtxSetCurrent(void *context);
int cuDevicePrimaryCtxRetain(void **out, int card);

/* All cards of a process share one account: a rank works on one of them. */
static __thread int current;

int cudaGetDeviceCount(int *out) { *out = card_count(); return SUCCESS; }
int cudaGetDevice(int *out) { *out = current; return SUCCESS; }
int cudaSetDevice(int ordinal) {
    if (ordinal < 0 || ordinal >= card_count()) return fail(INVALID_DEVICE);
    current = ordinal;
    if (card_is_one_of_several()) {
        void *context = NULL;
        if (cuDevicePrimaryCtxRetain(&context, ordinal) == SUCCESS) cuCtxSetCurrent(context);
    }
    return SUCCESS;
}
int cudaDriverGetVersion(int *out) { *out = 13000; return SUCCESS; }
int cudaRuntimeGetVersion(int *out) { *out = 13000; return SUCCESS; }
int cudaDeviceCanAccessPeer(int *out, int a, int b) { *out = card_reach_each_other(a, b); return SUCCESS; }
int cudaDeviceEnablePeerAccess(int peer, unsigned flags) { (void)flags; return card_reach_each_other(current, peer) ? SUCCESS : fail(NOT_SUPPORTED); }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -1; return SUCCESS; }
int cudaDeviceSynchronize(void) {
    if (card_break_captures()) return fail(CAPTURE_UNSUPPORTED);
    device_sync();
    return SUCCESS;
}
int cudaDeviceGetPCIBusId(char *out, int room, int ordinal) {
    (void)ordinal;
    strncpy(out, "0000:00:00.0", (size_t)room);
    return SUCCESS;
}

/* The same offsets, filled from the card's attributes by their numbers. */
static void describe(char *out) {
    static const struct { size_t at; int attribute; } small[] = {
        {304, 12}, {308, 10}, {320, 1}, {324, 2}, {328, 3}, {332, 4}, {336, 5}, {340, 6}, {344, 7}, {360, 75}, {364, 76}, {384, 16},
        {588, 41}, {592, 37}, {596, 38}, {604, 39}, {632, 82}, {668, 95}, {688, 106},
    };
    static const struct { size_t at; int attribute; } large[] = {{296, 8}, {352, 9}, {368, 14}, {624, 81}, {672, 97}};
    snprintf(out, 256, "%s", card_name());
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        int value = card_attribute(small[i].attribute);
        memcpy(out + small[i].at, &value, sizeof value);
    }
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        size_t value = (size_t)card_attribute(large[i].attribute);
        memcpy(out + large[i].at, &value, sizeof value);
    }
    size_t memory = card_memory();
    memcpy(out + 288, &memory, sizeof memory);
}

/* cudaDeviceProp of CUDA 13: 1008 bytes, of which torch reads these (offsets from driver_types.h). */
int cudaGetDeviceProperties(char *out, int ordinal) {
    if (ordinal < 0 || ordinal >= card_count()) return fail(INVALID_DEVICE);
    static const struct { size_t at; int value; } small[] = {
        {304, 65536},                           /* registers a block */
        {308, 32},                              /* a warp */
        {320, 1024},                            /* threads a block, and in each dimension; blocks in each */
        {324, 1024}, {328, 1024}, {332, 64}, {336, 2147483647}, {340, 65535}, {344, 65535},
        {360, 9},                               /* major */
        {384, 132},                             /* multiprocessors */
        {588, 1},                               /* unified addressing */
        {596, 50 << 20},                        /* L2 cache */
        {604, 2048},                            /* threads a multiprocessor */
        {632, 65536},                           /* registers a multiprocessor */
        {668, 1},                               /* cooperative launch */
        {688, 32},                              /* blocks a multiprocessor */
    };
    const struct { size_t at, value; } large[] = {
        {288, device_capacity()},
        {296, 48 << 10},                        /* shared memory a block */
        {352, 65536},                           /* constants */
        {368, 512},                             /* texture alignment */
        {624, 228 << 10},                       /* shared memory a multiprocessor */
        {672, 227 << 10},                       /* shared memory a block, at most */
    };
    memset(out, 0, 1008);
    memcpy(out, "stand-in", 9);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) memcpy(out + small[i].at, &small[i].value, sizeof(int));
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) memcpy(out + large[i].at, &large[i].value, sizeof(size_t));
    if (card_described()) describe(out);
    return SUCCESS;
}

/* cudaDeviceProp of CUDA 12, which the wheels of torch up to 2.10 are made for: 1032 bytes, of which torch reads
 * these. */
int cudaGetDeviceProperties_v2(char *out, int ordinal) {
    char newer[1008];
    int failed = cudaGetDeviceProperties(newer, ordinal);
    if (failed) return failed;
    /* Members that CUDA 13 left out stand between these. */
    static const struct { size_t at, from, size; } parts[] = {
        {0, 0, 348}, {352, 352, 32}, {388, 384, 4}, {604, 588, 4}, {616, 596, 4}, {624, 604, 4}, {640, 624, 12}, {688, 668, 4}, {696, 672, 8}, {712, 688, 4},
    };
    memset(out, 0, 1032);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) memcpy(out + parts[i].at, newer + parts[i].from, parts[i].size);
    return SUCCESS;
}

int cudaDeviceGetAttribute(int *out, int attribute, int ordinal) {
    (void)ordinal;
    if (card_described()) {
        *out = card_attribute(attribute);
        return SUCCESS;
    }
    switch (attribute) {
    case 1: *out = 1024; break;         /* threads a block */
    case 8: *out = 48 << 10; break;     /* shared memory a block */
    case 10: *out = 32; break;          /* a warp */
    case 16: *out = 132; break;         /* multiprocessors */
    case 39: *out = 2048; break;        /* threads a multiprocessor */
    case 75: *out = 9; break;           /* major */
    case 97: *out = 227 << 10; break;   /* shared memory a block, at most */
    default: *out = 0;
    }
    return SUCCESS;
}

/* ---- errors ---- */

int cudaGetLastError(void) { int error = last_error; last_error = SUCCESS; return error; }
int cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : "error"; }
const char *cudaGetErrorName(int error) { return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaError"; }

/* ---- memory ---- */

/* As the real runtime: a thread that asks for memory has the card's context from then on. */
int cuCtxGetCurrent(void **out);
static void bind_thread(void) {
    void *context = NULL;
    if (cuCtxGetCurrent(&context) == SUCCESS && !context && cuDevicePrimaryCtxRetain(&context, current) == SUCCESS) cuCtxSetCurrent(context);
}

int cudaMalloc(void **out, size_t size) {
    bind_thread();
    uint64_t addr = device_malloc(size);
    if (!addr) return fail(OUT_OF_MEMORY);
    *out = (void *)addr;
    return SUCCESS;
}
int cudaFree(void *addr) { device_free((uint64_t)addr); return SUCCESS; }
int cudaMemGetInfo(size_t *available, size_t *total) {
    *total = card_memory() ? card_memory() : device_capacity();
    *available = *total > device_used() ? *total - device_used() : 0;
    return SUCCESS;
}

/* Host memory that CUDA knows: programs ask whether theirs is pinned. */
static struct { pthread_mutex_t lock; size_t count, room; struct { uintptr_t at; size_t size; } *rows; } pinned = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void pin(const void *addr, size_t size) {
    pthread_mutex_lock(&pinned.lock);
    if (pinned.count == pinned.room) {
        pinned.room = pinned.room ? 2 * pinned.room : 64;
        pinned.rows = realloc(pinned.rows, pinned.room * sizeof *pinned.rows);
        if (!pinned.rows) device_unexpected("no host memory");
    }
    pinned.rows[pinned.count].at = (uintptr_t)addr;
    pinned.rows[pinned.count++].size = size;
    pthread_mutex_unlock(&pinned.lock);
}
static void unpin(const void *addr) {
    pthread_mutex_lock(&pinned.lock);
    for (size_t i = 0; i < pinned.count; i++) {
        if (pinned.rows[i].at == (uintptr_t)addr) {
            pinned.rows[i] = pinned.rows[--pinned.count];
            break;
        }
    }
    pthread_mutex_unlock(&pinned.lock);
}
static int is_pinned(const void *addr) {
    int found = 0;
    pthread_mutex_lock(&pinned.lock);
    for (size_t i = 0; i < pinned.count && !found; i++) found = (uintptr_t)addr - pinned.rows[i].at < pinned.rows[i].size;
    pthread_mutex_unlock(&pinned.lock);
    return found;
}

int cudaHostAlloc(void **out, size_t size, unsigned flags) {
    (void)flags;
    *out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (*out) pin(*out, size);
    return *out ? SUCCESS : fail(OUT_OF_MEMORY);
}
int cudaMallocHost(void **out, size_t size) { return cudaHostAlloc(out, size, 0); }
int cudaFreeHost(void *addr) { unpin(addr); free(addr); return SUCCESS; }
int cudaHostRegister(void *addr, size_t size, unsigned flags) { (void)flags; pin(addr, size); return SUCCESS; }
int cudaHostUnregister(void *addr) { unpin(addr); return SUCCESS; }

static int on_card(const void *addr) {
    uint64_t at = (uint64_t)addr;
    return at >= DEVICE_RANGES || (at >= DEVICE_SEGMENTS && at < DEVICE_SYMBOLS + ((uint64_t)1 << 40));
}

/*
 * cudaPointerAttributes: {int type, device; void *on_device, *on_host}; type 0 is memory that CUDA does not know, 1 is
 * pinned, 2 is the card's.
 */
int cudaPointerGetAttributes(void *out, const void *addr) {
    struct { int type, ordinal; const void *on_device, *on_host; } answer = {0, -2, NULL, addr};
    if (on_card(addr)) {
        answer.type = 2;
        answer.ordinal = card_of_address((uint64_t)addr);
        answer.on_device = addr;
        answer.on_host = NULL;
    } else if (is_pinned(addr)) {
        answer.type = 1;
        answer.ordinal = 0;
        answer.on_device = addr;
    }
    memcpy(out, &answer, sizeof answer);
    return SUCCESS;
}

/* How often something small was read that the card does not know, and got zeros: a size or a branch may depend on it.
 * Estimates name the place that read it. */
enum { SMALL_READ = 4096 };
_Atomic unsigned long card_blind_reads;

/* An estimate sets this to answer for the card's memory: it copies so many bytes to the host, or returns 0. */
int (*_Atomic card_answerer)(void *to, const void *from, size_t size);

static int answered(void *to, const void *from, size_t size) {
    int (*ask)(void *, const void *, size_t) = card_answerer;
    return ask && ask(to, from, size);
}

/* kind: 0 host to host, 1 to the card, 2 from it, 3 within it, 4 to be found out. */
static int copy(void *to, const void *from, size_t size, int kind) {
    int there = on_card(to) || kind == 1 || kind == 3, here = on_card(from) || kind == 2 || kind == 3;
    if (there && here) echo_move(to, from, size);
    else if (there) echo_store(to, from, size);
    else if (!here) memcpy(to, from, size);
    else if (!echo_read(to, from, size) && !answered(to, from, size)) {
        memset(to, 0, size);
        card_blind_reads += size <= SMALL_READ;
    }
    return SUCCESS;
}
int cudaMemcpy(void *to, const void *from, size_t size, int kind) { return copy(to, from, size, kind); }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) { (void)stream; return copy(to, from, size, kind); }
int cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t size, void *stream) {
    (void)a; (void)b; (void)stream;
    return copy(to, from, size, 3);
}
int cudaMemset(void *at, int value, size_t size) { (void)at; (void)value; (void)size; return SUCCESS; }
int cudaMemsetAsync(void *at, int value, size_t size, void *stream) { (void)at; (void)value; (void)size; (void)stream; return SUCCESS; }

/* ---- events ---- */

int cudaEventCreate(void **out) { *out = device_event_new(); return SUCCESS; }
int cudaEventCreateWithFlags(void **out, unsigned flags) { (void)flags; *out = device_event_new(); return SUCCESS; }
int cudaEventDestroy(void *event) { card_destroy(event); return SUCCESS; }
int cudaEventRecord(void *event, void *stream) { card_record(event, (uint64_t)stream); return SUCCESS; }
int cudaEventRecordWithFlags(void *event, void *stream, unsigned flags) { (void)flags; card_record(event, (uint64_t)stream); return SUCCESS; }
int cudaEventQuery(void *event) { return device_event_query(event) ? SUCCESS : fail(NOT_READY); }
int cudaEventSynchronize(void *event) { device_event_sync(event); return SUCCESS; }
/* The card has no clock. A constant above 0: programs divide by it, and a search for the fastest takes the first. */
int cudaEventElapsedTime(float *out, void *a, void *b) { (void)a; (void)b; *out = 1.0f; return SUCCESS; }

/* ---- other processes (ipc.c): events are complete once they are recorded, so any event does for another ---- */

struct by_value { unsigned char bytes[64]; };
int cuIpcGetMemHandle(void *out, uint64_t addr);
int cuIpcOpenMemHandle_v2(uint64_t *out, struct by_value handle, unsigned flags);
int cuIpcCloseMemHandle(uint64_t addr);

int cudaIpcGetMemHandle(void *out, void *addr) { int error = cuIpcGetMemHandle(out, (uint64_t)addr); return error ? fail(error) : SUCCESS; }
int cudaIpcOpenMemHandle(void **out, struct by_value handle, unsigned flags) {
    int error = cuIpcOpenMemHandle_v2((uint64_t *)out, handle, flags);
    return error ? fail(error) : SUCCESS;
}
int cudaIpcCloseMemHandle(void *addr) { int error = cuIpcCloseMemHandle((uint64_t)addr); return error ? fail(error) : SUCCESS; }
int cudaIpcGetEventHandle(void *out, void *event) { (void)event; memset(out, 1, 64); return SUCCESS; }
int cudaIpcOpenEventHandle(void **out, struct by_value handle) { (void)handle; *out = device_event_new(); return SUCCESS; }

/* ---- streams and captures ---- */

int cudaStreamCreate(void **out) { *out = (void *)card_new_stream_on(current); return SUCCESS; }
int cudaStreamCreateWithFlags(void **out, unsigned flags) { (void)flags; return cudaStreamCreate(out); }
int cudaStreamCreateWithPriority(void **out, unsigned flags, int priority) {
    (void)flags; (void)priority;
    *out = (void *)card_new_stream_on(current);
    return SUCCESS;
}
int cudaStreamDestroy(void *stream) { (void)stream; return SUCCESS; }
int cudaStreamGetPriority(void *stream, int *out) { (void)stream; *out = 0; return SUCCESS; }
int cudaStreamQuery(void *stream) { (void)stream; return device_pending() ? fail(NOT_READY) : SUCCESS; }
int cudaStreamSynchronize(void *stream) { device_stream_sync((uint64_t)stream); return SUCCESS; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) { (void)flags; card_wait((uint64_t)stream, event); return SUCCESS; }
int cudaLaunchHostFunc(void *stream, void (*function)(void *), void *data) { (void)stream; function(data); return SUCCESS; }

int cudaStreamIsCapturing(void *stream, int *out) { *out = card_capture_status((uint64_t)stream); return SUCCESS; }
int cudaThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return SUCCESS; }
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, const void ***after, const void **edges,
                             size_t *count) {
    if (card_refusal()) return fail(card_refusal());
    uint64_t capture = card_capture((uint64_t)stream);
    *status = card_capture_status((uint64_t)stream);
    if (id) *id = capture;
    if (graph) *graph = (void *)capture;
    if (after) *after = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return SUCCESS;
}
int cudaStreamBeginCapture(void *stream, int mode) {
    (void)mode;
    int result = card_begin_capture((uint64_t)stream);
    return result ? fail(result) : SUCCESS;
}
int cudaStreamEndCapture(void *stream, void **graph) {
    *graph = (void *)card_capture((uint64_t)stream);
    int result = card_end_capture((uint64_t)stream);
    return result ? fail(result) : SUCCESS;
}
int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) { (void)graph; (void)nodes; *count = 1; return SUCCESS; }
int cudaGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags) {
    (void)flags;
    objects_of_executable(graph);
    *out = graph;
    return SUCCESS;
}
int cudaGraphInstantiate(void **out, void *graph, unsigned long long flags) { return cudaGraphInstantiateWithFlags(out, graph, flags); }
int cudaGraphLaunch(void *graph, void *stream) { (void)graph; (void)stream; echo_forget(); return SUCCESS; }
int cudaGraphExecDestroy(void *graph) { objects_drop_executable(graph); return SUCCESS; }
int cudaGraphDestroy(void *graph) { objects_drop_graph(graph); return SUCCESS; }

/* ---- kernels ---- */

struct size3 { unsigned x, y, z; };
static __thread struct { struct size3 grid, block; size_t shared; void *stream; } launch;

unsigned __cudaPushCallConfiguration(struct size3 grid, struct size3 block, size_t shared, void *stream) {
    launch.grid = grid;
    launch.block = block;
    launch.shared = shared;
    launch.stream = stream;
    return SUCCESS;
}
int __cudaPopCallConfiguration(struct size3 *grid, struct size3 *block, size_t *shared, void **stream) {
    *grid = launch.grid;
    *block = launch.block;
    *shared = launch.shared;
    *stream = launch.stream;
    return SUCCESS;
}
int __cudaGetKernel(void **out, const void *function) { *out = (void *)function; return SUCCESS; }
int __cudaLaunchKernel(void) { echo_forget(); return SUCCESS; }
int cudaLaunchKernelExC(void) { echo_forget(); return SUCCESS; }
int cudaFuncSetAttribute(const void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return SUCCESS; }
/* cudaFuncAttributes: three sizes, then the most threads a block; 128 bytes in all are ours to clear. */
int cudaFuncGetAttributes(void *out, const void *function) {
    (void)function;
    memset(out, 0, 128);
    ((int *)out)[6] = 1024;
    if (card_described()) {
        ((int *)out)[7] = 32;                   /* registers of a thread */
        ((int *)out)[8] = card_kernels();       /* the architecture of the intermediate code, and of the kernel */
        ((int *)out)[9] = card_kernels();
    }
    return SUCCESS;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *function, int block, size_t shared, unsigned flags) {
    (void)function; (void)block; (void)shared; (void)flags;
    *out = 1;
    return SUCCESS;
}

/* ---- the driver's functions ---- */

int cuGetProcAddress_v2(const char *symbol, void **out, int version, uint64_t flags, int *result);

/* A name without its version is that of the newest one. */
int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, int *found) {
    *out = dlsym(RTLD_DEFAULT, name);
    if (!*out) cuGetProcAddress_v2(name, out, (int)version, flags, NULL);
    if (found) *found = *out ? 0 : 1;
    return SUCCESS;
}

/* ---- not on this card ---- */

#define REFUSED(name) int name(void) { return fail(NOT_SUPPORTED); }
REFUSED(cudaDeviceGetDefaultMemPool)
REFUSED(cudaFreeAsync)
REFUSED(cudaMallocAsync)
