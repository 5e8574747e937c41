/* CUDA's runtime functions by name: what libc10_cuda.so of torch 2.4 to 2.15 links to. Built once for each major
 * version of CUDA, as libcudart.so.12 and libcudart.so.13, over the same libcuda.so.1. Signatures follow the public
 * ABI. */

#define _GNU_SOURCE
#include "device.h"
#include <dlfcn.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_READY = 600, NOT_SUPPORTED = 801 };

static __thread int last_error;

static int fail(int error) { return last_error = error; }

/* ---- device ---- */

int cudaGetDeviceCount(int *out) { *out = 1; return SUCCESS; }
int cudaGetDevice(int *out) { *out = 0; return SUCCESS; }
int cudaSetDevice(int ordinal) { return ordinal == 0 ? SUCCESS : fail(INVALID_VALUE); }
int cudaDriverGetVersion(int *out) { *out = 13000; return SUCCESS; }
int cudaRuntimeGetVersion(int *out) { *out = 13000; return SUCCESS; }
int cudaDeviceCanAccessPeer(int *out, int a, int b) { (void)a; (void)b; *out = 0; return SUCCESS; }
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = 0; return SUCCESS; }
int cudaDeviceSynchronize(void) { device_sync(); return SUCCESS; }

/* cudaDeviceProp: name[256], a 16-byte uuid, an 8-byte luid and its mask come first in CUDA 12 and 13 alike, then
 * totalGlobalMem. What follows differs between the two, and c10 reads none of it. */
static int properties(void *out, int ordinal) {
    if (ordinal != 0) return fail(INVALID_VALUE);
    uint64_t total = device_capacity();
    memset(out, 0, 288);
    memcpy(out, "stand-in", 9);
    memcpy((char *)out + 288, &total, sizeof total);
    return SUCCESS;
}
int cudaGetDeviceProperties(void *out, int ordinal) { return properties(out, ordinal); }
int cudaGetDeviceProperties_v2(void *out, int ordinal) { return properties(out, ordinal); }

/* ---- errors ---- */

int cudaGetLastError(void) { int error = last_error; last_error = SUCCESS; return error; }
int cudaPeekAtLastError(void) { return last_error; }
const char *cudaGetErrorString(int error) { return error == OUT_OF_MEMORY ? "out of memory" : "error"; }
const char *cudaGetErrorName(int error) { return error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaError"; }

/* ---- memory ---- */

int cudaMalloc(void **out, size_t size) {
    uint64_t addr = device_malloc(size);
    if (!addr) return fail(OUT_OF_MEMORY);
    *out = (void *)addr;
    return SUCCESS;
}

int cudaFree(void *addr) { device_free((uint64_t)addr); return SUCCESS; }

int cudaMemGetInfo(size_t *available, size_t *total) {
    *total = device_capacity();
    *available = *total - device_used();
    return SUCCESS;
}

/* ---- events and streams ---- */

int cudaEventCreateWithFlags(void **out, unsigned flags) { (void)flags; *out = device_event_new(); return SUCCESS; }
int cudaEventDestroy(void *event) { device_event_delete(event); return SUCCESS; }
int cudaEventRecord(void *event, void *stream) { device_event_record(event, (uint64_t)stream); return SUCCESS; }
/* Not ready is an answer, and yet the runtime keeps it as the last error: c10 clears it. */
int cudaEventQuery(void *event) { return device_event_query(event) ? SUCCESS : fail(NOT_READY); }
int cudaEventSynchronize(void *event) { device_event_sync(event); return SUCCESS; }
int cudaStreamSynchronize(void *stream) { device_stream_sync((uint64_t)stream); return SUCCESS; }
int cudaStreamGetPriority(void *stream, int *out) { (void)stream; *out = 0; return SUCCESS; }

/* The bench says which streams capture; private pools are opened by the bench itself. */
int cudaStreamIsCapturing(void *stream, int *out) { *out = device_captures((uint64_t)stream); return SUCCESS; }
int cudaThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return SUCCESS; }
/* The outputs after the status are optional, and unused without graph_capture_record_stream_reuse. */
int cudaStreamGetCaptureInfo(void *stream, int *status) { return cudaStreamIsCapturing(stream, status); }
int cudaStreamGetCaptureInfo_v2(void *stream, int *status) { return cudaStreamIsCapturing(stream, status); }

/* ---- the driver's functions ---- */

static int entry_point(const char *name, void **out, int *found) {
    *out = dlsym(RTLD_DEFAULT, name);
    if (found) *found = *out ? 0 : 1;
    return SUCCESS;
}
int cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags, int *found) {
    (void)flags;
    return entry_point(name, out, found);
}
int cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version, unsigned long long flags, int *found) {
    (void)version;
    (void)flags;
    return entry_point(name, out, found);
}

/* ---- linked to, never called by the native allocator with one device ---- */

#define UNEXPECTED(name) int name(void) { device_unexpected(#name " was called"); }
UNEXPECTED(cudaDeviceEnablePeerAccess)
UNEXPECTED(cudaDeviceGetDefaultMemPool)
UNEXPECTED(cudaDeviceGetGraphMemAttribute)
UNEXPECTED(cudaDeviceSetGraphMemAttribute)
UNEXPECTED(cudaEventElapsedTime)
UNEXPECTED(cudaFreeAsync)
UNEXPECTED(cudaGraphAddEmptyNode)
UNEXPECTED(cudaGraphNodeGetDependencies)
UNEXPECTED(cudaGraphNodeGetType)
UNEXPECTED(cudaIpcCloseMemHandle)
UNEXPECTED(cudaIpcGetMemHandle)
UNEXPECTED(cudaIpcOpenMemHandle)
UNEXPECTED(cudaMallocAsync)
UNEXPECTED(cudaMemPoolGetAttribute)
UNEXPECTED(cudaMemPoolSetAccess)
UNEXPECTED(cudaMemPoolSetAttribute)
UNEXPECTED(cudaMemPoolTrimTo)
UNEXPECTED(cudaMemcpy)
UNEXPECTED(cudaMemcpyAsync)
UNEXPECTED(cudaMemcpyPeerAsync)
UNEXPECTED(cudaStreamCreateWithPriority)
UNEXPECTED(cudaStreamQuery)
UNEXPECTED(cudaStreamUpdateCaptureDependencies)
UNEXPECTED(cudaStreamWaitEvent)
