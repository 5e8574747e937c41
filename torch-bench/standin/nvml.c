/* The management library by name: from 2.13 on, c10 asks it about fabric handles without looking whether it is there,
 * and `gapless top` asks it too. Built as libnvidia-ml.so.1. There is one card; nothing runs on it, and it has no
 * fabric, unless the environment says so:
 *
 * STANDIN_CAPACITY    the card's bytes, as everywhere here
 * STANDIN_PROCESSES   who uses it: `pid:bytes,pid:bytes`; `?` for bytes that the driver does not know, and `bytes+` for
 *                     the asking process itself: so much, and what it has of the card
 * STANDIN_NVML        a number that nvmlInit returns: 9 is a driver that is not loaded
 * STANDIN_UNIFIED     the card uses the host's memory: the library does not tell how full it is
 * STANDIN_MIG         the card is divided: `instance:bytes,instance:bytes`. Only the instances tell of processes: those
 *                     of STANDIN_PROCESSES are on the first one. Instance N has the card's UUID with N at its end
 * STANDIN_CLIENTS     clients of the Multi-Process Service, as STANDIN_PROCESSES; their server is there by itself */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

#define UUID "GPU-6a70c0de-0000-4000-8000-000000000001"

#define CARD_NAME "Stand-in card"
#define MOST_INSTANCES 7

static int card;
/* Handles of instances: by their places in STANDIN_MIG. */
static int instances[MOST_INSTANCES];

/* The number and the bytes of the instance at a place; 0: there is none. */
static int instance_at(unsigned place, unsigned *number, unsigned long long *bytes) {
    const char *at = getenv("STANDIN_MIG");
    for (unsigned i = 0; at && *at; i++) {
        char *end;
        *number = (unsigned)strtoul(at, &end, 10);
        if (*end != ':') return 0;
        *bytes = strtoull(end + 1, &end, 10);
        if (i == place) return 1;
        at = *end == ',' ? end + 1 : NULL;
    }
    return 0;
}

/* The place of an instance's handle, -1 for the card. */
static int place_of(void *dev) { return dev == &card ? -1 : (int)((int *)dev - instances); }

typedef struct { unsigned pid; unsigned long long used; } process_v1;
typedef struct { unsigned pid; unsigned long long used; unsigned instance, compute_instance; } process_v2;

static unsigned long long capacity(void) {
    const char *text = getenv("STANDIN_CAPACITY");
    return text ? strtoull(text, NULL, 10) : (4ull << 30) + (37ull << 20);
}

/* The bytes that this process has of the card. */
static unsigned long long held(void) {
    uint64_t (*used)(void) = (uint64_t (*)(void))dlsym(RTLD_DEFAULT, "device_used");
    return used ? used() : 0;
}

/* The processes that a variable names, at most `room` of them into `out`; how many there are. */
static unsigned list_of(const char *variable, process_v2 *out, unsigned room) {
    unsigned count = 0;
    const char *at = getenv(variable);
    while (at && *at) {
        char *end;
        unsigned long pid = strtoul(at, &end, 10);
        if (end == at || *end != ':') break;
        at = end + 1;
        unsigned long long used = *at == '?' ? ~0ull : strtoull(at, &end, 10);
        at = *at == '?' ? at + 1 : end;
        if (*at == '+') used += held(), at += 1;
        if (count < room) out[count] = (process_v2){(unsigned)pid, used, ~0u, ~0u};
        count += 1;
        if (*at == ',') at += 1;
        else break;
    }
    return count;
}

static unsigned list(process_v2 *out, unsigned room) { return list_of("STANDIN_PROCESSES", out, room); }

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
int nvmlDeviceGetMigMode(void *dev, unsigned *now, unsigned *next) {
    if (place_of(dev) >= 0) return INVALID_ARGUMENT;
    *now = *next = getenv("STANDIN_MIG") != NULL;
    return SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(void *dev, unsigned *out) { (void)dev; *out = MOST_INSTANCES; return SUCCESS; }
/* Numbers have gaps: the second place is empty. */
int nvmlDeviceGetMigDeviceHandleByIndex(void *dev, unsigned index, void **out) {
    unsigned number, place = index > 1 ? index - 1 : index;
    unsigned long long bytes;
    if (place_of(dev) >= 0 || index >= MOST_INSTANCES) return INVALID_ARGUMENT;
    if (index == 1 || !instance_at(place, &number, &bytes)) return NOT_FOUND;
    *out = &instances[place];
    return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(void *dev, unsigned *out) {
    unsigned long long bytes;
    int place = place_of(dev);
    return place >= 0 && instance_at((unsigned)place, out, &bytes) ? SUCCESS : NOT_SUPPORTED;
}

static int uuid_of(void *dev, char *out, unsigned room) {
    unsigned number;
    unsigned long long bytes;
    int place = place_of(dev);
    if (strlen(UUID) >= room) return INSUFFICIENT_SIZE;
    strcpy(out, UUID);
    if (place < 0) return SUCCESS;
    if (!instance_at((unsigned)place, &number, &bytes)) return NOT_FOUND;
    memcpy(out, "MIG", 3);
    snprintf(out + strlen(out) - 2, 3, "%02x", number & 0xff);
    return SUCCESS;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    char found[64];
    *out = &card;
    if (!strcmp(uuid, UUID)) return SUCCESS;
    for (int place = 0; place < MOST_INSTANCES; place++) {
        *out = &instances[place];
        if (uuid_of(*out, found, sizeof found) == SUCCESS && !strcmp(uuid, found)) return SUCCESS;
    }
    return NOT_FOUND;
}
/* Of an instance: its place among those of its card, which is no number of a card. */
int nvmlDeviceGetIndex(void *dev, unsigned *out) { *out = place_of(dev) < 0 ? 0 : (unsigned)place_of(dev) + 40; return SUCCESS; }
int nvmlDeviceGetUUID(void *dev, char *out, unsigned room) { return uuid_of(dev, out, room); }
int nvmlDeviceGetName(void *dev, char *out, unsigned room) {
    return text(out, room, place_of(dev) < 0 ? CARD_NAME : CARD_NAME " MIG 1g.5gb");
}

/* nvmlMemory_t: total, free, used. */
int nvmlDeviceGetMemoryInfo(void *dev, unsigned long long *out) {
    unsigned number;
    int place = place_of(dev);
    if (getenv("STANDIN_UNIFIED")) return NOT_SUPPORTED;
    out[0] = capacity();
    if (place >= 0 && !instance_at((unsigned)place, &number, &out[0])) return NOT_FOUND;
    out[2] = place > 0 ? 0 : used();
    if (out[2] > out[0]) out[2] = out[0];
    out[1] = out[0] - out[2];
    return SUCCESS;
}

/* Nothing runs on a divided card itself, nor on its instances behind the first one. */
static int tells(void *dev) { return getenv("STANDIN_MIG") ? place_of(dev) == 0 : place_of(dev) < 0; }

int nvmlDeviceGetComputeRunningProcesses(void *dev, unsigned *count, process_v1 *out) {
    static process_v2 all[1024];
    unsigned room = *count, there = tells(dev) ? list(all, 1024) : 0;
    *count = there;
    if (there > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < there && i < 1024; i++) out[i] = (process_v1){all[i].pid, all[i].used};
    return SUCCESS;
}

static int list_into(const char *variable, void *dev, unsigned *count, process_v2 *out) {
    unsigned room = *count;
    *count = tells(dev) ? list_of(variable, out, room) : 0;
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *dev, unsigned *count, process_v2 *out) {
    return list_into("STANDIN_PROCESSES", dev, count, out);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *dev, unsigned *count, process_v2 *out) {
    return list_into("STANDIN_CLIENTS", dev, count, out);
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NOT_SUPPORTED; }
/* nvmlGpuFabricInfoV_t: version, a 16-byte cluster, status, clique, then the state; 0 is "not supported". */
int nvmlDeviceGetGpuFabricInfoV(void *dev, char *out) { (void)dev; out[28] = 0; return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13000; return SUCCESS; }
