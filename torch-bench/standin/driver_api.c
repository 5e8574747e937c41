/* CUDA's driver functions by name, for expandable segments. Built with device.c into libcuda.so.1: c10 takes them from
 * there, by dlsym (up to 2.7 or so) or through cudaGetDriverEntryPoint. Signatures follow the public ABI; what an
 * argument of no use here points to is never read, which is why no CUDA header is needed. */

#include "device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

/* ../python/faults.c, if that is a part of the library: calls are counted, and fail when a test asks for it. */
__attribute__((weak)) int card_enter(void);
#define ENTER do { int fault = card_enter ? card_enter() : SUCCESS; if (fault) return fault; } while (0)

/* ../python/cards.c, if that is a part of the library: the card of each mapping. */
__attribute__((weak)) void card_created(uint64_t handle, int card);
__attribute__((weak)) void card_mapped(uint64_t addr, uint64_t size, uint64_t handle);
__attribute__((weak)) void card_unmapped(uint64_t addr, uint64_t size);
__attribute__((weak)) int card_reserved(uint64_t addr, uint64_t size);
__attribute__((weak)) void card_unreserved(uint64_t addr);

int cuGetErrorString(int error, const char **text) {
    *text = error == OUT_OF_MEMORY ? "out of memory" : error == NOT_SUPPORTED ? "operation not supported" : "error";
    return SUCCESS;
}

int cuInit(unsigned flags) { (void)flags; return SUCCESS; }

/* ../../card/properties.c, if that is a part of the library. */
__attribute__((weak)) int card_described(void);
__attribute__((weak)) int card_attribute(int number);
__attribute__((weak)) int card_count(void);

int cuDeviceGet(int *out, int ordinal) {
    *out = ordinal;
    return ordinal >= 0 && ordinal < (card_count ? card_count() : 1) ? SUCCESS : INVALID_VALUE;
}

/* As standin/nvml.c prints it. STANDIN_INSTANCE is the instance of a divided card that the process has. */
int cuDeviceGetUuid_v2(unsigned char *out, int dev) {
    static const unsigned char uuid[16] = {0x6a, 0x70, 0xc0, 0xde, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, 1};
    const char *instance = getenv("STANDIN_INSTANCE");
    (void)dev;
    memcpy(out, uuid, sizeof uuid);
    if (instance) out[15] = (unsigned char)atoi(instance);
    return SUCCESS;
}

int cuDeviceGetName(char *out, int room, int dev) {
    (void)dev;
    snprintf(out, (size_t)room, "Stand-in card");
    return SUCCESS;
}

/*
 * No optional ability but that pages leave the process as files (103): no fabric handles, no GPUDirect. The compute
 * capability (75, 76) is 9.0. With STANDIN_UNIFIED the card uses the host's memory (18). If a card is described, it has
 * the abilities of that card.
 */
int cuDeviceGetAttribute(int *out, int attribute, int dev) {
    (void)dev;
    if (card_described && card_described()) *out = card_attribute(attribute);
    else *out = attribute == 75 ? 9 : attribute == 103 || (attribute == 18 && getenv("STANDIN_UNIFIED"));
    return SUCCESS;
}

int cuMemGetAllocationGranularity(size_t *out, const void *properties, int option) {
    (void)properties;
    (void)option;
    *out = DEVICE_GRANULE;
    return SUCCESS;
}

int cuMemAddressReserve(uint64_t *out, size_t size, size_t alignment, uint64_t hint, unsigned long long flags) {
    ENTER;
    (void)hint;
    (void)flags;
    uint64_t addr = device_reserve(size, alignment);
    if (card_reserved && !card_reserved(addr, size)) {
        device_unreserve(addr, size);
        return OUT_OF_MEMORY;
    }
    *out = addr;
    return SUCCESS;
}

int cuMemAddressFree(uint64_t addr, size_t size) {
    if (card_unreserved) card_unreserved(addr);
    device_unreserve(addr, size);
    return SUCCESS;
}

/*
 * CUmemAllocationProp begins with {int type; int requestedHandleTypes; int where, card}. Fabric handles (8) are refused
 * as on a card without them.
 */
int cuMemCreate(uint64_t *out, size_t size, const void *properties, unsigned long long flags) {
    ENTER;
    (void)flags;
    if (((const int *)properties)[1] == 8) return NOT_SUPPORTED;
    uint64_t handle = device_create(size);
    if (!handle) return OUT_OF_MEMORY;
    if (card_created) card_created(handle, ((const int *)properties)[3]);
    *out = handle;
    return SUCCESS;
}

int cuMemRelease(uint64_t handle) {
    device_release(handle);
    return SUCCESS;
}

int cuMemMap(uint64_t addr, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
    ENTER;
    (void)flags;
    if (offset) device_unexpected("cuMemMap with an offset");
    device_map(addr, size, handle);
    if (card_mapped) card_mapped(addr, size, handle);
    return SUCCESS;
}

int cuMemUnmap(uint64_t addr, size_t size) {
    ENTER;
    if (card_unmapped) card_unmapped(addr, size);
    device_unmap(addr, size);
    return SUCCESS;
}

__attribute__((weak)) int cuMemSetAccess(uint64_t addr, size_t size, const void *descriptors, size_t count) {
    (void)addr;
    (void)size;
    (void)descriptors;
    (void)count;
    return SUCCESS;
}

/* Taken at start, called only to share memory between processes or devices; python/ipc.c has the first two. */
#define UNEXPECTED(name) int name(void) { device_unexpected(#name " was called"); }
__attribute__((weak)) UNEXPECTED(cuMemExportToShareableHandle)
__attribute__((weak)) UNEXPECTED(cuMemImportFromShareableHandle)
UNEXPECTED(cuMemRetainAllocationHandle)
UNEXPECTED(cuMemGetAllocationPropertiesFromHandle)
UNEXPECTED(cuMemGetAddressRange)
/* python/contents.c has one that stores. */
__attribute__((weak)) UNEXPECTED(cuMemsetD32Async)
UNEXPECTED(cuStreamWriteValue32)
