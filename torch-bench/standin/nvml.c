/* The management library by name: from 2.13 on, c10 asks it about fabric handles without looking whether it is there;
 * and what `gapless top` asks it. Built as libnvidia-ml.so.1. There is one card; nothing runs on it, and it has no
 * fabric, unless the environment says so:
 *
 * STANDIN_CAPACITY    the card's bytes, as everywhere here
 * STANDIN_PROCESSES   who uses it: `pid:bytes,pid:bytes`; `?` for bytes that the driver does not know
 * STANDIN_NVML        a number that nvmlInit returns: 9 is a driver that is not loaded */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

#define UUID "GPU-6a70c0de-0000-4000-8000-000000000001"

static int card;

typedef struct { unsigned pid; unsigned long long used; } process_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute_instance; } process_v2;

static unsigned long long capacity(void) {
    const char *text = getenv("STANDIN_CAPACITY");
    return text ? strtoull(text, NULL, 10) : (4ull << 30) + (37ull << 20);
}

/* The processes named in the environment, at most `room` of them into `out`; how many there are. */
static unsigned list(process_v2 *out, unsigned room) {
    unsigned count = 0;
    const char *at = getenv("STANDIN_PROCESSES");
    while (at && *at) {
        char *end;
        unsigned long pid = strtoul(at, &end, 10);
        if (end == at || *end != ':') break;
        at = end + 1;
        unsigned long long used = *at == '?' ? ~0ull : strtoull(at, &end, 10);
        at = *at == '?' ? at + 1 : end;
        if (count < room) out[count] = (process_v2){(unsigned)pid, used, ~0u, ~0u};
        count += 1;
        if (*at == ',') at += 1;
        else break;
    }
    return count;
}

static unsigned long long used(void) {
    static process_v2 all[1024];
    unsigned long long sum = 0;
    unsigned count = list(all, 1024);
    for (unsigned i = 0; i < count && i < 1024; i++)
        if (all[i].used != ~0ull) sum += all[i].used;
    return sum < capacity() ? sum : capacity();
}

static int text(char *out, unsigned room, const char *value) {
    if (strlen(value) >= room) return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

int nvmlInit_v2(void) { return getenv("STANDIN_NVML") ? atoi(getenv("STANDIN_NVML")) : SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *out) { *out = 1; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) { *out = &card; return index ? INVALID_ARGUMENT : SUCCESS; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) { (void)bus; *out = &card; return SUCCESS; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) { *out = &card; return strcmp(uuid, UUID) ? NOT_FOUND : SUCCESS; }
int nvmlDeviceGetIndex(void *dev, unsigned *out) { (void)dev; *out = 0; return SUCCESS; }
int nvmlDeviceGetUUID(void *dev, char *out, unsigned room) { (void)dev; return text(out, room, UUID); }
int nvmlDeviceGetName(void *dev, char *out, unsigned room) { (void)dev; return text(out, room, "Stand-in card"); }

/* nvmlMemory_t: total, free, used. */
int nvmlDeviceGetMemoryInfo(void *dev, unsigned long long *out) {
    (void)dev;
    out[0] = capacity();
    out[2] = used();
    out[1] = out[0] - out[2];
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(void *dev, unsigned *count, process_v1 *out) {
    (void)dev;
    static process_v2 all[1024];
    unsigned room = *count, there = list(all, 1024);
    *count = there;
    if (there > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < there && i < 1024; i++) out[i] = (process_v1){all[i].pid, all[i].used};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *dev, unsigned *count, process_v2 *out) {
    (void)dev;
    unsigned room = *count;
    *count = list(out, room);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
/* nvmlGpuFabricInfoV_t: version, a 16-byte cluster, status, clique, then the state; 0 is "not supported". */
int nvmlDeviceGetGpuFabricInfoV(void *dev, char *out) { (void)dev; out[28] = 0; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13000; return SUCCESS; }
