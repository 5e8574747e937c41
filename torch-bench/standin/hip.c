/* HIP's runtime by name, over the card of ../python/card.h: built as libamdhip64.so, with the card's files, or over
 * the libcuda.so.1 that has them. It is as strict as HIP's headers allow an implementation to be:
 *
 * devices    Each thread has a current device, and there are no contexts. There are two, which share the card's memory.
 * ranges     Access is set, and memory unmapped, for exactly what one hipMemMap mapped. Anything else is refused.
 * streams    Handle 1 (hipStreamLegacy) is not known, as in releases before it was added.
 * fences     There are none.
 *
 * The environment takes abilities away:
 * STANDIN_HIP_VMM=0       the card has no virtual memory management
 * STANDIN_HIP_ALIAS=0     a page can be mapped once only
 * STANDIN_HIP_COPIES=1    a page that is mapped twice shows at the second address what it had when it was mapped there
 * STANDIN_HIP_GRANULE=N   pages are multiples of N bytes
 * Tests ask hip_calls_on(device) how many calls for memory and events came while a device was current. */

#include "../python/card.h"
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 2, INTEGRATED = 16, VMM_SUPPORTED = 89 };

int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
int cuMemAddressFree(uint64_t, size_t);
int cuMemCreate(uint64_t *, size_t, const void *, unsigned long long);
int cuMemRelease(uint64_t);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, unsigned long long);
int cuMemUnmap(uint64_t, size_t);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuStreamIsCapturing(void *, int *);

static __thread int current;
static unsigned long calls[DEVICES];

static int is_off(const char *name) { const char *said = getenv(name); return said && !strcmp(said, "0"); }
static int is_device(int device) { return device >= 0 && device < DEVICES; }
static void count(void) { __atomic_add_fetch(&calls[current], 1, __ATOMIC_RELAXED); }
unsigned long hip_calls_on(int device) { return is_device(device) ? calls[device] : 0; }

/* ---- devices ---- */

int hipInit(unsigned flags) { (void)flags; return SUCCESS; }
int hipGetDeviceCount(int *out) { *out = DEVICES; return SUCCESS; }
int hipDeviceGet(int *out, int ordinal) { *out = ordinal; return is_device(ordinal) ? SUCCESS : INVALID_DEVICE; }
int hipGetDevice(int *out) { *out = current; return SUCCESS; }
int hipSetDevice(int device) {
    if (!is_device(device)) return INVALID_DEVICE;
    current = device;
    return SUCCESS;
}
int hipDeviceTotalMem(size_t *out, int device) { (void)device; *out = device_capacity(); return SUCCESS; }
int hipDeviceGetName(char *out, int room, int device) {
    (void)device;
    strncpy(out, "Stand-in card of HIP", (size_t)room - 1);
    out[room - 1] = 0;
    return SUCCESS;
}
/* Text, as AMD's driver has it. */
int hipDeviceGetUuid(char *out, int device) {
    memcpy(out, "6a70c0de0000000", 15);
    out[15] = (char)('1' + device);
    return SUCCESS;
}
int hipDeviceGetAttribute(int *out, int attribute, int device) {
    if ((attribute != VMM_SUPPORTED && attribute != INTEGRATED) || !is_device(device)) return INVALID_VALUE;
    *out = attribute == VMM_SUPPORTED && !is_off("STANDIN_HIP_VMM");
    return SUCCESS;
}
int hipDeviceSynchronize(void) { count(); device_sync(); return SUCCESS; }

/* ---- memory ---- */

int hipMemGetInfo(size_t *available, size_t *total) {
    *total = device_capacity();
    *available = *total - device_used();
    return SUCCESS;
}
int hipMemGetAllocationGranularity(size_t *out, const void *properties, int option) {
    const char *said = getenv("STANDIN_HIP_GRANULE");
    (void)properties;
    (void)option;
    *out = said ? strtoull(said, NULL, 10) : 4096;
    return SUCCESS;
}
int hipMemAddressReserve(uint64_t *out, size_t size, size_t alignment, uint64_t hint, unsigned long long flags) {
    count();
    return cuMemAddressReserve(out, size, alignment, hint, flags);
}
int hipMemAddressFree(uint64_t addr, size_t size) { count(); return cuMemAddressFree(addr, size); }
int hipMemCreate(uint64_t *out, size_t size, const void *properties, unsigned long long flags) {
    /* hipMemAllocationProp: type, handle type, {location type, device}. */
    if (!is_device(((const int *)properties)[3])) return INVALID_DEVICE;
    count();
    return cuMemCreate(out, size, properties, flags);
}
int hipMemRelease(uint64_t handle) { count(); return cuMemRelease(handle); }

static uint64_t first_seen[1 << 16];

int hipMemMap(uint64_t addr, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
    uint64_t at = 0, left, behind = 0;
    count();
    if (handle < 1 << 16) {
        at = first_seen[handle];
        behind = at ? device_behind(at, &(uint64_t){0}, &left) : 0;
        if (behind == handle && is_off("STANDIN_HIP_ALIAS")) return INVALID_VALUE;
        if (behind != handle) first_seen[handle] = addr;
    }
    if (behind == handle && getenv("STANDIN_HIP_COPIES")) {
        uint64_t copy;
        int status = cuMemCreate(&copy, size, (const int[8]){1, 0, 1, 0}, 0);
        if (status) return status;
        status = cuMemMap(addr, size, offset, copy, flags);
        cuMemRelease(copy);
        return status;
    }
    return cuMemMap(addr, size, offset, handle, flags);
}
static int is_one_mapping(uint64_t addr, size_t size) {
    uint64_t offset, left;
    return device_behind(addr, &offset, &left) && offset == 0 && left == size;
}
int hipMemSetAccess(uint64_t addr, size_t size, const void *descriptors, size_t number) {
    (void)descriptors;
    (void)number;
    count();
    return is_one_mapping(addr, size) ? SUCCESS : INVALID_VALUE;
}
int hipMemUnmap(uint64_t addr, size_t size) {
    count();
    return is_one_mapping(addr, size) ? cuMemUnmap(addr, size) : INVALID_VALUE;
}
int hipHostMalloc(void **out, size_t size, unsigned flags) { return cuMemHostAlloc(out, size, flags); }
int hipHostFree(void *addr) { return cuMemFreeHost(addr); }
int hipMemsetD32Async(uint64_t addr, int value, size_t number, void *stream) {
    return cuMemsetD32Async(addr, (unsigned)value, number, stream);
}
int hipMemcpyDtoHAsync(void *to, uint64_t from, size_t size, void *stream) {
    return cuMemcpyDtoHAsync_v2(to, from, size, stream);
}

/* ---- events and streams ---- */

int hipEventCreateWithFlags(void **out, unsigned flags) { (void)flags; count(); *out = device_event_new(); return SUCCESS; }
int hipEventDestroy(void *event) { card_destroy(event); return SUCCESS; }
int hipEventRecord(void *event, void *stream) { count(); card_record(event, (uint64_t)stream); return SUCCESS; }
int hipEventQuery(void *event) { return device_event_query(event) ? SUCCESS : NOT_READY; }
int hipEventSynchronize(void *event) { device_event_sync(event); return SUCCESS; }
int hipStreamCreateWithFlags(void **out, unsigned flags) { (void)flags; *out = (void *)card_new_stream(); return SUCCESS; }
int hipStreamSynchronize(void *stream) { device_stream_sync((uint64_t)stream); return SUCCESS; }
int hipStreamGetDevice(void *stream, int *out) { (void)stream; *out = 0; return SUCCESS; }
int hipStreamIsCapturing(void *stream, int *out) {
    if (stream == (void *)1) device_unexpected("hipStreamIsCapturing of a handle that is no stream");
    return cuStreamIsCapturing(stream, out);
}
int hipThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return SUCCESS; }
