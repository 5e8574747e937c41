/*
 * gapless.h: GPU memory from the pool of Gapless, for C and C++.
 *
 *     gcc program.c -I INCLUDE -L FOLDER -lgapless_torch -Wl,-rpath,FOLDER
 *
 * The Python package has this file and libgapless_torch.so: gapless.include_dir() is INCLUDE, gapless.library_dir() is
 * FOLDER.
 *
 * What you allocate here comes from the same pool as the memory of PyTorch, CuPy and Numba in this process. It counts
 * in the same statistics, limits and budgets, and `gapless top` shows it.
 *
 * - No function throws. A function that fails returns NULL or a code. gapless_last_error() then says why.
 * - All functions may be called from any thread.
 * - CUDA need not be initialised. The first allocation on a device retains the device's primary context.
 * - After fork() the child cannot allocate. Its calls to gapless_mem_free do nothing.
 * - A stream is a cudaStream_t or CUstream, on AMD's cards a hipStream_t. NULL is the default stream.
 */
#ifndef GAPLESS_H
#define GAPLESS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this header. gapless_mem_abi() returns the one of the library. Compare them if you load the library
 * at run time. Functions and fields are only ever added. */
#define GAPLESS_ABI 1

/* Codes. */
enum {
    GAPLESS_OK = 0,
    GAPLESS_OUT_OF_MEMORY = 1,    /* the device, a limit or a budget has no room for the request */
    GAPLESS_INVALID_ARGUMENT = 2, /* an unknown pointer, or a stream that cannot be used */
    GAPLESS_UNAVAILABLE = 3       /* no driver, no such device, a forked child, or checked mode found an error */
};

/* The legacy default stream by name (cudaStreamLegacy). See gapless_mem_free_on. */
#define GAPLESS_STREAM_LEGACY ((void *)(uintptr_t)1)

/* Statistics of one device. All in bytes, except the three counters. */
typedef struct gapless_mem_stats_t {
    uint64_t allocated;         /* in blocks that callers hold */
    uint64_t allocated_peak;    /* the most since the last gapless_mem_reset_peaks */
    uint64_t reserved;          /* taken from the device */
    uint64_t reserved_peak;
    uint64_t requested;         /* what callers asked for, before rounding */
    uint64_t allocations;       /* blocks that callers hold */
    uint64_t allocations_total; /* since the start */
    uint64_t failures;          /* requests that failed since the start */
    uint64_t limit;             /* the most that the pool may reserve now; 0: no limit but the device */
    uint64_t device_free;       /* free on the device, as the driver says */
    uint64_t device_total;
} gapless_mem_stats_t;

/* The version of the library. */
int gapless_mem_abi(void);

/* Sets options for this process, before the first allocation: "limit=8589934592;reserve=1073741824". NULL: the
 * defaults. You need not call it. Returns 0, or -1 if an option is unknown or if other options were set before. */
int gapless_enable(const char *options);

/* Where a request that fails leaves its last events, as gapless-oom.PID.N.gtrace for `gapless oom`. By default this is
 * the current folder. An empty path: nowhere. Call it before the first failure; later calls change nothing. */
void gapless_oom_folder(const char *path);

/* Allocates `size` bytes on `device`, for work on `stream`. The address is aligned to 512 bytes.
 *
 * Returns NULL if that fails: gapless_mem_last_code() and gapless_last_error() say why. Also returns NULL if `size` is
 * 0: then the code is GAPLESS_OK. The per-thread default stream is not allowed. */
void *gapless_mem_alloc(size_t size, int device, void *stream);

/* Frees memory. Work that is queued on the stream of the allocation may still use it. Later allocations for that
 * stream may get it at once. NULL is allowed. Returns a code. */
int gapless_mem_free(void *pointer);

/* Frees memory that `stream` uses too. It is not used again before the work that is queued on `stream` now is done.
 *
 * With GAPLESS_STREAM_LEGACY, not before the work on all blocking streams is done. Use this for memory of the default
 * stream if you do not know which streams use it. */
int gapless_mem_free_on(void *pointer, void *stream);

/* Says that `stream` uses the memory besides the stream of the allocation. After it is freed, it is not used again
 * before the work that is queued on `stream` at that time is done. Returns a code. */
int gapless_mem_record_stream(void *pointer, void *stream);

/* Writes statistics of a device. Pass sizeof(gapless_mem_stats_t) as `size`. All are 0 if the device was not used.
 * Returns a code. */
int gapless_mem_stats(int device, gapless_mem_stats_t *stats, size_t size);

/* Starts the peaks again from the present values. */
void gapless_mem_reset_peaks(int device);

/* Returns free memory of the pool to the device. The result is the number of bytes. */
uint64_t gapless_mem_trim(int device);

/* Sets the most that the pool may reserve on a device from now on; 0: no limit but the device. It replaces the option
 * `limit`. Memory beyond the limit is not taken away. Returns a code. */
int gapless_mem_set_limit(int device, uint64_t bytes);

/* The code of the last call of this thread that returns a pointer or a code. */
int gapless_mem_last_code(void);

/* Why the last call of this thread that failed did so. Valid until the next call that fails. Never NULL. */
const char *gapless_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
