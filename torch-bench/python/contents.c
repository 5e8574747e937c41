/* Bytes behind mapped addresses, for the driver's fills and copies: a handle's are the same at each address that it is
 * mapped at. The host has memory only for bytes that are touched. Kernels and the runtime's copies do not come here.
 * Tests write with card_poke, as a kernel would.
 *
 * Weak: a driver_api.c that has its own of the functions that the allocator needs takes precedence. */

#define _GNU_SOURCE
#include "card.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WEAK __attribute__((weak))
enum { MOST_HANDLES = 65536, LAUNCH_FAILED = 719, ADOPTED = -1 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* A file, if another process may get the bytes; ADOPTED if this one got them; 0: none. */
static struct { unsigned char *at; size_t size; int file; } contents[MOST_HANDLES];

static void forget(uint64_t handle) {
    pthread_mutex_lock(&lock);
    if (handle < MOST_HANDLES && contents[handle].file) {
        munmap(contents[handle].at, contents[handle].size);
        if (contents[handle].file != ADOPTED) close(contents[handle].file);
        memset(&contents[handle], 0, sizeof contents[handle]);
    }
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void watch(void) { device_watch_handles(forget); }

static void map_file(uint64_t handle, int file, int kept, size_t size) {
    contents[handle].file = kept;
    contents[handle].size = size;
    contents[handle].at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (contents[handle].at == MAP_FAILED) device_unexpected("no host memory");
}

int contents_file(uint64_t handle) {
    size_t size = device_handle_size(handle);
    if (handle >= MOST_HANDLES) device_unexpected("too many handles");
    pthread_mutex_lock(&lock);
    if (!contents[handle].file) {
        unsigned char *before = contents[handle].at;
        size_t known = contents[handle].size < size ? contents[handle].size : size;
        int file = memfd_create("stand-in page", MFD_CLOEXEC);
        if (file < 0) {
            pthread_mutex_unlock(&lock);
            return -1;
        }
        if (ftruncate(file, (off_t)size)) device_unexpected("no host memory");
        map_file(handle, file, file, size);
        if (before) {
            memcpy(contents[handle].at, before, known);
            munmap(before, known);
        }
    }
    int copy = contents[handle].file == ADOPTED ? -1 : fcntl(contents[handle].file, F_DUPFD_CLOEXEC, 3);
    pthread_mutex_unlock(&lock);
    return copy;
}

void contents_adopt(uint64_t handle, int file, uint64_t size) {
    if (handle >= MOST_HANDLES) device_unexpected("too many handles");
    pthread_mutex_lock(&lock);
    map_file(handle, file, ADOPTED, size);
    pthread_mutex_unlock(&lock);
}

/* The bytes at `addr` and how many follow; NULL if nothing is mapped. */
static unsigned char *bytes_at(uint64_t addr, size_t *left) {
    uint64_t offset, rest, handle = device_behind(addr, &offset, &rest);
    if (!handle) return NULL;
    if (handle >= MOST_HANDLES) device_unexpected("too many handles");
    pthread_mutex_lock(&lock);
    if (contents[handle].size < offset + rest) {
        if (contents[handle].at) munmap(contents[handle].at, contents[handle].size);
        contents[handle].size = offset + rest;
        contents[handle].at = mmap(NULL, offset + rest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (contents[handle].at == MAP_FAILED) device_unexpected("no host memory");
    }
    unsigned char *at = contents[handle].at + offset;
    pthread_mutex_unlock(&lock);
    *left = rest;
    return at;
}

/* Counts down with every copy; the one that finds 0 fails, later ones do not. Below 0: none fails. For tests. */
static int fails_in = -1;
void card_fail_copy(int count) { fails_in = count; }

/* To the card or from it. */
static int move(uint64_t addr, unsigned char *host, size_t size, int to_card) {
    while (size) {
        size_t left;
        unsigned char *at = bytes_at(addr, &left);
        if (!at && device_in_segment(addr, size)) {
            if (!to_card) memset(host, 0, size);
            return SUCCESS;
        }
        if (!at || (to_card && card_is_read_only(addr))) return INVALID_VALUE;
        if (left > size) left = size;
        if (to_card) memcpy(at, host, left);
        else memcpy(host, at, left);
        addr += left;
        host += left;
        size -= left;
    }
    return SUCCESS;
}

int cuMemsetD32Async(uint64_t addr, unsigned value, size_t count, void *stream) {
    (void)stream;
    while (count) {
        size_t left;
        unsigned char *at = bytes_at(addr, &left);
        if (!at || card_is_read_only(addr)) return INVALID_VALUE;
        if (left > 4 * count) left = 4 * count;
        for (size_t i = 0; i < left / 4; i++) ((unsigned *)at)[i] = value;
        addr += left;
        count -= left / 4;
    }
    return SUCCESS;
}
static int fails(void) { return fails_in >= 0 && fails_in-- == 0; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    (void)stream;
    return fails() ? LAUNCH_FAILED : move(from, to, size, 0);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    (void)stream;
    return fails() ? LAUNCH_FAILED : move(to, (void *)from, size, 1);
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { return move(to, (void *)from, size, 1); }

/* Writes as a kernel would, for tests. */
int card_poke(uint64_t addr, const void *from, size_t size) { return move(addr, (void *)from, size, 1); }

int cuCtxGetDevice(int *out);
static int current_card(void) {
    int card = 0;
    cuCtxGetDevice(&card);
    return card;
}
WEAK int cuStreamCreate(void **out, unsigned flags) { (void)flags; *out = (void *)card_new_stream_on(current_card()); return SUCCESS; }
WEAK int cuStreamDestroy_v2(void *stream) { (void)stream; return SUCCESS; }
/* No time passes on this card. */
WEAK int cuEventElapsedTime(float *out, void *from, void *to) { (void)from; (void)to; *out = 0; return SUCCESS; }
int cuCtxGetCurrent(void **out);
WEAK int cuStreamGetCtx(void *stream, void **out) { (void)stream; return cuCtxGetCurrent(out); }
