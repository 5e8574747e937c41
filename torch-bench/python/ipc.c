/* Memory and events that several processes have. A page leaves its process as a file of the host's memory, so that its
 * bytes (contents.c) are the same in both; its size counts for the process that made it. Memory of cudaMalloc has no
 * bytes: another process that opens it gets addresses of its own, and its size. */

#define _GNU_SOURCE
#include "card.h"
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_HANDLE = 1, MOST_OPEN = 256 };

static int exported, opened_files;

/* How many pages left this process, and how many of others it has opened, for tests. */
int card_exported(void) { return exported; }
int card_imported(void) { return opened_files; }

int cuMemExportToShareableHandle(void *out, uint64_t handle, int kind, unsigned long long flags) {
    int fault = card_enter();
    if (fault) return fault;
    (void)flags;
    if (kind != FILE_HANDLE) return NOT_SUPPORTED;
    int file = contents_file(handle);
    if (file < 0) return INVALID_VALUE;
    __atomic_add_fetch(&exported, 1, __ATOMIC_RELAXED);
    memcpy(out, &file, sizeof file);
    return SUCCESS;
}

int cuMemImportFromShareableHandle(uint64_t *out, void *what, int kind) {
    int fault = card_enter();
    if (fault) return fault;
    struct stat about;
    int file = (int)(intptr_t)what;
    if (kind != FILE_HANDLE) return NOT_SUPPORTED;
    if (fstat(file, &about) || about.st_size == 0) return INVALID_VALUE;
    *out = device_import((uint64_t)about.st_size);
    contents_adopt(*out, file, (uint64_t)about.st_size);
    __atomic_add_fetch(&opened_files, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}

/* ---- memory of cudaMalloc ---- */

struct told { int process; uint64_t addr; };
struct by_value { unsigned char bytes[64]; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct { struct told told; uint64_t at; } open_ones[MOST_OPEN];

int cuIpcGetMemHandle(void *out, uint64_t addr) {
    struct told told = {getpid(), addr};
    if (addr < DEVICE_SEGMENTS || addr >= DEVICE_RANGES) return INVALID_VALUE;
    memset(out, 0, 64);
    memcpy(out, &told, sizeof told);
    return SUCCESS;
}

int cuIpcOpenMemHandle_v2(uint64_t *out, struct by_value handle, unsigned flags) {
    (void)flags;
    struct told told;
    memcpy(&told, handle.bytes, sizeof told);
    if (told.process == getpid() || !told.addr) return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    size_t slot = 0;
    while (slot < MOST_OPEN && open_ones[slot].at) slot++;
    if (slot == MOST_OPEN) device_unexpected("too many opened handles");
    open_ones[slot].told = told;
    *out = open_ones[slot].at = device_reserve(DEVICE_GRANULE, DEVICE_GRANULE);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuIpcCloseMemHandle(uint64_t addr) {
    pthread_mutex_lock(&lock);
    size_t slot = 0;
    while (slot < MOST_OPEN && open_ones[slot].at != addr) slot++;
    int known = addr && slot < MOST_OPEN;
    if (known) {
        open_ones[slot].at = 0;
        device_unreserve(addr, DEVICE_GRANULE);
    }
    pthread_mutex_unlock(&lock);
    return known ? SUCCESS : INVALID_VALUE;
}
