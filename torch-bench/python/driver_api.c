/* More of the driver's functions by name: those that an allocator in a Python process calls beside
 * ../standin/driver_api.c, and those that libcaffe2_nvrtc.so links to. One card, one context. */

#include "../../card/properties.h"
#include "card.h"
#include <stdlib.h>
#include <unistd.h>

/* The context of a card. */
#define FIRST_CONTEXT ((uintptr_t)0x6a70)
#define CONTEXT(card) ((void *)(FIRST_CONTEXT + 16 * (uintptr_t)(card)))

enum { NOT_FOUND = 500 };

static __thread void *stack[64];
static __thread int depth;

static void *current(void) { return depth ? stack[depth - 1] : NULL; }

int cuDriverGetVersion(int *out) { *out = 13000; return SUCCESS; }
int cuDeviceGetCount(int *out) { *out = card_count(); return SUCCESS; }
int cuDeviceTotalMem_v2(size_t *out, int card) {
    (void)card;
    *out = card_memory() ? card_memory() : device_capacity();
    return SUCCESS;
}
int cuGetErrorName(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return SUCCESS;
}

/* ---- contexts ---- */

int cuDevicePrimaryCtxRetain(void **out, int card) { *out = CONTEXT(card); return card >= 0 && card < card_count() ? SUCCESS : INVALID_DEVICE; }
int cuDevicePrimaryCtxRelease_v2(int card) { (void)card; return SUCCESS; }
int cuDevicePrimaryCtxGetState(int card, unsigned *flags, int *active) {
    (void)card;
    *flags = 0;
    *active = 1;
    return SUCCESS;
}
int cuCtxGetCurrent(void **out) { *out = current(); return SUCCESS; }
int cuCtxSetCurrent(void *context) {
    if (!depth) depth = 1;
    stack[depth - 1] = context;
    return SUCCESS;
}
int cuCtxPushCurrent_v2(void *context) {
    if (depth == 64) device_unexpected("cuCtxPushCurrent without cuCtxPopCurrent");
    stack[depth++] = context;
    return SUCCESS;
}
int cuCtxPopCurrent_v2(void **out) {
    if (!depth) return 201;
    depth -= 1;
    if (out) *out = stack[depth];
    return SUCCESS;
}
int cuCtxGetDevice(int *out) {
    uintptr_t at = (uintptr_t)current() - FIRST_CONTEXT;
    *out = at % 16 == 0 && at / 16 < (uintptr_t)card_count() ? (int)(at / 16) : 0;
    return SUCCESS;
}
int cuDeviceCanAccessPeer(int *out, int user, int owner) { *out = card_reach_each_other(user, owner); return SUCCESS; }
/* Work that is not done as long as the file STANDIN_STALL exists: a thread that waits for the card waits for that. */
static void stall(void) {
    const char *file = getenv("STANDIN_STALL");
    while (file && !access(file, F_OK)) usleep(1000);
}
int cuCtxSynchronize(void) {
    if (card_break_captures()) return CAPTURE_UNSUPPORTED;
    stall();
    device_sync();
    return SUCCESS;
}

/* ---- memory ---- */

/* If the memory is the host's, most of it is in the kernel's file cache, which the driver counts as used. */
int cuMemGetInfo_v2(size_t *available, size_t *total) {
    *total = card_memory() ? card_memory() : device_capacity();
    *available = *total > device_used() ? *total - device_used() : 0;
    if (getenv("STANDIN_UNIFIED")) *available /= 64;
    return SUCCESS;
}
int cuMemAlloc_v2(uint64_t *out, size_t size) {
    *out = device_malloc(size);
    return *out ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFree_v2(uint64_t addr) { device_free(addr); return SUCCESS; }

/* Of what cuMemMap mapped: one mapping, not the reservation that it lies in. */
int cuMemGetAddressRange_v2(uint64_t *base, size_t *size, uint64_t addr) {
    uint64_t offset, left;
    if (!device_behind(addr, &offset, &left)) return NOT_FOUND;
    if (base) *base = addr - offset;
    if (size) *size = offset + left;
    return SUCCESS;
}

/* The host's memory is real. STANDIN_HOST bytes of it can be pinned, all if it is not set. */
static size_t pinned;
static struct { void *at; size_t size; } pins[4096];

/* Keeps account of a pinned range. Its slot, or -1 if the host has no room. */
static int pin(void *at, size_t size) {
    const char *most = getenv("STANDIN_HOST");
    int slot = 0;
    while (slot < 4096 && pins[slot].at) slot++;
    if (slot == 4096) device_unexpected("too many pinned ranges");
    if (!at || (most && pinned + size > strtoull(most, NULL, 10))) return -1;
    pins[slot].at = at;
    pins[slot].size = size;
    pinned += size;
    return slot;
}
static int unpin(void *at) {
    size_t slot = 0;
    while (slot < 4096 && pins[slot].at != at) slot++;
    if (!at || slot == 4096) return INVALID_VALUE;
    pinned -= pins[slot].size;
    pins[slot].at = NULL;
    return SUCCESS;
}

int cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    (void)flags;
    void *made = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (pin(made, size) < 0) {
        free(made);
        return OUT_OF_MEMORY;
    }
    *out = made;
    return SUCCESS;
}
int cuMemFreeHost(void *at) {
    int status = unpin(at);
    if (status == SUCCESS) free(at);
    return status;
}
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) { (void)flags; return pin(at, size) < 0 ? OUT_OF_MEMORY : SUCCESS; }
int cuMemHostUnregister(void *at) { return unpin(at); }
/* The bytes that are pinned now, for tests. */
size_t card_pinned(void) { return pinned; }

/* ---- events and streams ---- */

int cuEventCreate(void **out, unsigned flags) { (void)flags; *out = device_event_new(); return SUCCESS; }
int cuEventDestroy_v2(void *event) { card_destroy(event); return SUCCESS; }
int cuEventRecord(void *event, void *stream) {
    int fault = card_enter();
    if (!fault && (uint64_t)stream <= 1) fault = card_use_default();
    if (!fault) card_record(event, (uint64_t)stream);
    return fault;
}
int cuEventQuery(void *event) { return card_ask(event); }
int cuEventSynchronize(void *event) {
    int status = device_event_captured(event) ? card_ask(event) : SUCCESS;
    if (status) return status;
    stall();
    device_event_sync(event);
    return SUCCESS;
}
int cuStreamSynchronize(void *stream) { device_stream_sync((uint64_t)stream); return SUCCESS; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)flags;
    card_wait((uint64_t)stream, event);
    return SUCCESS;
}
int cuStreamIsCapturing(void *stream, int *out) {
    *out = card_capture_status((uint64_t)stream);
    return (uint64_t)stream <= 1 ? card_blocking_captured() : SUCCESS;
}
int cuStreamCreate(void **out, unsigned flags) {
    *out = (void *)(card_new_stream() | (flags & 1 ? 0 : BLOCKING));
    return SUCCESS;
}
/* It waits for all work, and breaks no capture. */
int cuModuleUnload(void *module) {
    (void)module;
    stall();
    device_sync();
    return SUCCESS;
}
/* A stream that was made again, in another context, for tests. */
static void *moved_stream, *moved_to;
void card_move_stream(void *stream, void *context) {
    moved_stream = stream;
    moved_to = context;
}
int cuStreamGetCtx(void *stream, void **out) {
    *out = stream && stream == moved_stream ? moved_to : CONTEXT(card_of_stream((uint64_t)stream));
    return SUCCESS;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return SUCCESS; }

/* ---- linked to, never called; ../../card/driver_more.c has what loads and launches kernels ---- */

#define UNEXPECTED(name) int name(void) { device_unexpected(#name " was called"); }
UNEXPECTED(cuLinkAddData_v2)
UNEXPECTED(cuLinkComplete)
UNEXPECTED(cuLinkCreate_v2)
