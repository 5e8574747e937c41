/* cuDNN's backend, which torch convolves and attends through: the real library answers, without a card. Its public
 * device-property descriptor stands for the card. It is set on heuristics, engines and plans in the place of a handle,
 * and NVIDIA's own heuristics say which engine a card of that kind would use and how much workspace that needs.
 *
 * A convolution of one point (1 x 1, no stride, no padding) is a matrix product. The engine that a card uses for it is
 * not offered without one, so a rule stands for it, from 61 runs on an H200 of convolutions whose channels come first:
 * no workspace forward and for the input's gradient, batch * inputs * outputs * 4 bytes for the weight's. The card
 * uses the offered engine
 *
 *   for maps of at most 7 x 7 points if both numbers of channels are multiples of 256;
 *   for such maps with other numbers of channels, forward and for the input's gradient in half precision if batch *
 *   points is a multiple of 64;
 *   for the weight's gradient if it needs less (a card is at times seen to use the other one all the same);
 *   for the weight's gradient in float32 with fewer than 64 inputs over maps of at least 56 x 56 points.
 *
 * A plan that compiles its kernel (attention) cannot be finished without a card. Its workspace is the one that its
 * engine configuration names. */

#define _GNU_SOURCE
#include "cudnn.h"
#include "notes.h"
#include "properties.h"
#include "../torch-bench/standin/device.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Descriptors and attributes by their numbers in cudnn_graph.h. */
enum { ENGINE = 2, HEURISTICS = 4, PLAN = 5, FORWARD = 10, WEIGHT_GRADIENT = 11, INPUT_GRADIENT = 12, DEVICE = 38 };
/* Attributes of the three operations begin at different numbers, in the same order. */
enum { FORWARD_FIRST = 700, INPUT_GRADIENT_FIRST = 706, WEIGHT_GRADIENT_FIRST = 712 };
enum { AT_CONVOLUTION = 2, AT_WEIGHT = 3, AT_DATA = 4 };
enum { FLOAT32 = 0, SMALL_MAP = 7 * 7, LARGE_MAP = 56 * 56, FEW_INPUTS = 64, WHOLE_TILE = 256, ALIGNED_ROWS = 64 };
enum { DILATIONS = 102, STRIDES = 103, PADDINGS_AFTER = 104, PADDINGS = 105, DATA_TYPE = 901, DIMENSIONS = 902, TENSOR_STRIDES = 903 };
enum {
    HEURISTICS_DEVICE = 204, CONFIGURATION_ENGINE = 300, CONFIGURATION_WORKSPACE = 303, PLAN_HANDLE = 400, PLAN_CONFIGURATION = 401, PLAN_WORKSPACE = 402,
    PLAN_DEVICE = 407, GRAPH_HANDLE = 800, ENGINE_BEHAVIOR = 1305, ENGINE_DEVICE = 1307, DEVICE_JSON = 2702
};
enum { TYPE = 1, INT64 = 3, DESCRIPTOR = 15, BEHAVIOR = 19, CHARACTER = 24 };
enum { RUNTIME_COMPILATION = 0, MOST_BEHAVIORS = 16 };

typedef int (*create_function)(int, void **);
typedef int (*set_function)(void *, int, int, int64_t, const void *);
typedef int (*get_function)(void *, int, int, int64_t, int64_t *, void *);
typedef int (*finalize_function)(void *);

static create_function real_create;
static set_function real_set;
static get_function real_get;
static finalize_function real_finalize, real_destroy;

/* Facts of a descriptor beside those that the real library keeps: a table by address, open addressing. */
typedef struct { void *descriptor, *configuration, *convolution, *weight, *data; int type, unfinished, is_point, is_smaller; uint64_t point_bytes; } record;
static struct { record *at; size_t room, count; } table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void *device;

static size_t slot_of(const record *at, size_t room, const void *descriptor) {
    size_t slot = ((uintptr_t)descriptor >> 4) * 11400714819323198485u >> 20 & (room - 1);
    while (at[slot].descriptor && at[slot].descriptor != descriptor) slot = (slot + 1) & (room - 1);
    return slot;
}

static void grow(void) {
    size_t room = table.room ? table.room * 2 : 4096;
    record *fresh = calloc(room, sizeof *fresh);
    if (!fresh) device_unexpected("no host memory");
    for (size_t i = 0; i < table.room; i++) {
        if (table.at[i].descriptor) fresh[slot_of(fresh, room, table.at[i].descriptor)] = table.at[i];
    }
    free(table.at);
    table.at = fresh;
    table.room = room;
}

/* A descriptor's record; made if there is none. An address that is used again takes its old record. */
static record *record_of(void *descriptor) {
    if (2 * table.count >= table.room) grow();
    record *found = &table.at[slot_of(table.at, table.room, descriptor)];
    if (!found->descriptor) {
        found->descriptor = descriptor;
        table.count += 1;
    }
    return found;
}

static record looked_up(void *descriptor) {
    pthread_mutex_lock(&lock);
    record found = *record_of(descriptor);
    pthread_mutex_unlock(&lock);
    return found;
}

/* The convolution that this thread described last: torch makes its plan next. */
static __thread struct { int is_point, is_smaller, kind; int64_t batch, inputs, outputs; } latest;

/* True if the values of an attribute are all this number. */
static int all_are(void *descriptor, int name, int64_t value) {
    int64_t values[MOST_DIMENSIONS], count = 0;
    if (real_get(descriptor, name, INT64, MOST_DIMENSIONS, &count, values)) return 0;
    for (int64_t i = 0; i < count; i++) {
        if (values[i] != value) return 0;
    }
    return count > 0;
}

/* True if a card uses the offered engine for a convolution of one point. */
static int takes_offered(void *tensor, int kind, const int64_t *weight, const int64_t *data, int64_t dimensions) {
    int64_t points = 1, count = 0;
    int type = FLOAT32, whole = weight[0] % WHOLE_TILE == 0 && weight[1] % WHOLE_TILE == 0;
    for (int64_t i = 2; i < dimensions; i++) points *= data[i];
    if (real_get(tensor, DATA_TYPE, TYPE, 1, &count, &type)) return 0;
    int is_weight = kind == WEIGHT_GRADIENT, is_aligned = data[0] * points % ALIGNED_ROWS == 0;
    if (points <= SMALL_MAP && whole) return 1;
    if (points <= SMALL_MAP && !is_weight) return type != FLOAT32 && is_aligned;
    latest.is_smaller |= is_weight;
    return is_weight && type == FLOAT32 && weight[1] < FEW_INPUTS && points >= LARGE_MAP;
}

/* Looks at a finished operation, which names its convolution, weight and data. */
static void describe_operation(void *operation, int kind) {
    record known = looked_up(operation);
    int64_t weight[MOST_DIMENSIONS], data[MOST_DIMENSIONS], weights = 0, count = 0;
    latest.is_point = 0;
    latest.kind = kind;
    if (!known.convolution || !known.weight || !known.data) return;
    if (real_get(known.weight, DIMENSIONS, INT64, MOST_DIMENSIONS, &weights, weight) || weights < 3) return;
    if (real_get(known.data, DIMENSIONS, INT64, MOST_DIMENSIONS, &count, data) || count != weights) return;
    for (int64_t i = 2; i < weights; i++) {
        if (weight[i] != 1) return;
    }
    int plain = all_are(known.convolution, STRIDES, 1) && all_are(known.convolution, PADDINGS, 0)
        && all_are(known.convolution, PADDINGS_AFTER, 0) && all_are(known.convolution, DILATIONS, 1);
    /* Groups show as fewer inputs of the weight than channels of the data. */
    int64_t strides[MOST_DIMENSIONS], found = 0;
    latest.is_smaller = !real_get(known.data, TENSOR_STRIDES, INT64, MOST_DIMENSIONS, &found, strides) && strides[1] == 1 && data[1] > 1;
    latest.is_point = plain && weight[1] == data[1] && !takes_offered(known.data, kind, weight, data, count);
    latest.batch = data[0];
    latest.outputs = weight[0];
    latest.inputs = weight[1];
}

/* The card as cuDNN describes one. */
static void describe(char *out, size_t room) {
    int length = snprintf(
        out, room,
        "{\"maxGridSize\":[%d,%d,%d],\"maxBlockSize\":[%d,%d,%d],\"regsPerBlock\":%d,\"multiProcessorCount\":%d,\"warpSize\":%d,"
        "\"maxSharedMemoryPerBlock\":%d,\"maxSharedMemoryPerBlockOptin\":%d,\"reservedSharedMemoryPerBlock\":%d,"
        "\"maxRegistersPerSM\":%d,\"maxCtasPerSM\":%d,\"maxThreadsPerBlock\":%d,\"maxThreadsPerSM\":%d,\"pciDeviceId\":%d,"
        "\"isTccDriver\":0,\"supportCoopLaunch\":%d,\"totalGlobalMem\":%llu,\"smClockRateKHz\":%d,\"memClockRateKHz\":%d,"
        "\"l2CacheSize\":%d,\"cudaDeviceId\":0,\"deviceVer\":%d,\"driverVer\":13000,\"deviceName\":\"%s\",\"version\":1}",
        card_attribute(5), card_attribute(6), card_attribute(7), card_attribute(2), card_attribute(3), card_attribute(4),
        card_attribute(12), card_attribute(PROCESSORS), card_attribute(10), card_attribute(8), card_attribute(97), card_attribute(111),
        card_attribute(82), card_attribute(106), card_attribute(1), card_attribute(39), card_attribute(34), card_attribute(95),
        (unsigned long long)card_memory(), card_attribute(13), card_attribute(36), card_attribute(L2_CACHE),
        card_attribute(MAJOR) * 100 + card_attribute(MINOR) * 10, card_name());
    if (length < 0 || (size_t)length >= room) device_unexpected("the card's description is too long");
}

static void open_real(void) {
    real_create = (create_function)real_cudnn("cudnnBackendCreateDescriptor");
    real_set = (set_function)real_cudnn("cudnnBackendSetAttribute");
    real_get = (get_function)real_cudnn("cudnnBackendGetAttribute");
    real_finalize = (finalize_function)real_cudnn("cudnnBackendFinalize");
    real_destroy = (finalize_function)real_cudnn("cudnnBackendDestroyDescriptor");
    if (!card_described()) device_unexpected("a convolution needs to know the card: GAPLESS_CARD names no file");
    char json[2048];
    describe(json, sizeof json);
    if (real_create(DEVICE, &device) || real_set(device, DEVICE_JSON, CHARACTER, (int64_t)strlen(json) + 1, json) || real_finalize(device)) {
        device_unexpected("this release of cuDNN does not take the description of a card: its heuristics cannot be asked");
    }
}

int cudnnBackendCreateDescriptor(int type, void **out) {
    pthread_once(&once, open_real);
    int result = real_create(type, out);
    if (result) return result;
    pthread_mutex_lock(&lock);
    *record_of(*out) = (record){.descriptor = *out, .type = type};
    pthread_mutex_unlock(&lock);
    return 0;
}

int cudnnBackendDestroyDescriptor(void *descriptor) {
    pthread_once(&once, open_real);
    return real_destroy(descriptor);
}

/*
 * Keeps the parts of an operation. Attributes of the three kinds are numbered alike: two factors, the convolution, the
 * weight, the data (the input or its gradient), the result.
 */
static void remember(void *operation, int name, const void *values) {
    void *part = *(void *const *)values;
    int place = (name - FORWARD_FIRST) % (INPUT_GRADIENT_FIRST - FORWARD_FIRST);
    pthread_mutex_lock(&lock);
    record *known = record_of(operation);
    if (place == AT_CONVOLUTION) known->convolution = part;
    if (place == AT_WEIGHT) known->weight = part;
    if (place == AT_DATA) known->data = part;
    pthread_mutex_unlock(&lock);
}

int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *values) {
    if (name == GRAPH_HANDLE) return 0;
    if (name == PLAN_HANDLE) return real_set(descriptor, PLAN_DEVICE, DESCRIPTOR, 1, &device);
    if (name == PLAN_CONFIGURATION) {
        pthread_mutex_lock(&lock);
        record_of(descriptor)->configuration = *(void *const *)values;
        pthread_mutex_unlock(&lock);
    }
    if (name >= FORWARD_FIRST && name < WEIGHT_GRADIENT_FIRST + 6 && type == DESCRIPTOR && count == 1) remember(descriptor, name, values);
    return real_set(descriptor, name, type, count, values);
}

static int configured_workspace(void *configuration, int64_t *out) {
    int64_t count = 0;
    *out = 0;
    return configuration ? real_get(configuration, CONFIGURATION_WORKSPACE, INT64, 1, &count, out) : 1;
}

/* True if the engine of a configuration compiles its kernel. */
static int compiles(void *configuration) {
    void *engine = NULL;
    int64_t count = 0;
    int notes[MOST_BEHAVIORS], found = 0;
    if (!configuration || real_create(ENGINE, &engine)) return 0;
    if (!real_get(configuration, CONFIGURATION_ENGINE, DESCRIPTOR, 1, &count, &engine)
        && !real_get(engine, ENGINE_BEHAVIOR, BEHAVIOR, MOST_BEHAVIORS, &count, notes)) {
        for (int64_t i = 0; i < count && i < MOST_BEHAVIORS; i++) found |= notes[i] == RUNTIME_COMPILATION;
    }
    real_destroy(engine);
    return found;
}

int cudnnBackendFinalize(void *descriptor) {
    record known = looked_up(descriptor);
    if (known.type == HEURISTICS) real_set(descriptor, HEURISTICS_DEVICE, DESCRIPTOR, 1, &device);
    if (known.type == ENGINE) real_set(descriptor, ENGINE_DEVICE, DESCRIPTOR, 1, &device);
    if (known.type != PLAN || !compiles(known.configuration)) {
        int result = real_finalize(descriptor);
        if (!result && known.type >= FORWARD && known.type <= INPUT_GRADIENT) describe_operation(descriptor, known.type);
        if (result || known.type != PLAN || !latest.is_point) return result;
        pthread_mutex_lock(&lock);
        record *plan = record_of(descriptor);
        plan->is_point = 1;
        plan->is_smaller = latest.is_smaller;
        plan->point_bytes = latest.kind == WEIGHT_GRADIENT ? (uint64_t)(latest.batch * latest.inputs * latest.outputs * 4) : 0;
        pthread_mutex_unlock(&lock);
        return 0;
    }
    latest.is_point = 0;
    pthread_mutex_lock(&lock);
    record_of(descriptor)->unfinished = 1;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t most, int64_t *count, void *out) {
    if (name != PLAN_WORKSPACE) return real_get(descriptor, name, type, most, count, out);
    record known = looked_up(descriptor);
    int64_t bytes = 0;
    if (known.is_point) {
        if (count) *count = 1;
        if (real_get(descriptor, name, type, most, count, &bytes)) bytes = 0;
        /* The smaller of both. */
        if (!known.is_smaller || bytes > (int64_t)known.point_bytes) bytes = (int64_t)known.point_bytes;
        *(int64_t *)out = bytes;
        card_note(BY_RULE, "convolution_of_one_point", (uint64_t)bytes);
        return 0;
    }
    if (known.unfinished) {
        configured_workspace(known.configuration, &bytes);
        if (count) *count = 1;
        *(int64_t *)out = bytes;
        card_note(BY_RULE, "cudnnBackendFinalize", (uint64_t)bytes);
        return 0;
    }
    int result = real_get(descriptor, name, type, most, count, out);
    if (!result) card_note(BY_PLAN, __func__, (uint64_t) * (int64_t *)out);
    return result;
}

int cudnnBackendExecute(void *handle, void *plan, void *variables) { (void)handle; (void)plan; (void)variables; return 0; }
