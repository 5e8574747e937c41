/*
 * The state behind card.h. Built into libcuda.so.1 with the device, so that runtime and driver calls meet the same
 * card.
 */

#define _GNU_SOURCE
#include "../../card/properties.h"
#include "card.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MOST_CAPTURED = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int held;
static uint64_t streams, captures;
/* Streams in a capture; the one that began it is its origin. */
static struct { uint64_t stream, id; int origin, broken; } captured[MOST_CAPTURED];
static size_t captured_count;
static int refusal;

/* No round number: a size that is taken for the capacity by chance should not look right. */
__attribute__((constructor)) static void open_card(void) {
    const char *said = getenv("STANDIN_CAPACITY");
    device_open(said ? strtoull(said, NULL, 10) : ((uint64_t)4 << 30) + ((uint64_t)37 << 20), NULL);
    device_place_as_driver();
}

void card_hold(int hold) {
    held = hold;
    if (!hold) device_sync();
}

void card_alloc_at_the_end(void *(*alloc)(size_t, int, void *)) {
    int (*is_finalizing)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsFinalizing");
    if (!is_finalizing) is_finalizing = (int (*)(void))dlsym(RTLD_DEFAULT, "_Py_IsFinalizing");
    while (is_finalizing && !is_finalizing()) usleep(1000);
    printf(alloc(1000, 0, NULL) ? "served\n" : "refused\n");
    fflush(stdout);
    for (;;) pause();
}

void card_record(device_event *event, uint64_t stream) {
    device_event_forget(event);
    device_tick();
    device_event_record(event, stream);
    device_event_capture(event, (int)card_capture(stream));
    if (!held) device_stream_sync(stream);
}

void card_destroy(device_event *event) {
    device_event_forget(event);
    device_event_delete(event);
}

/* The number has its card in it. */
uint64_t card_new_stream_on(int card) {
    pthread_mutex_lock(&lock);
    uint64_t stream = 0x5000000000 + ((uint64_t)card << 40) + 0x100 * ++streams;
    pthread_mutex_unlock(&lock);
    return stream;
}
uint64_t card_new_stream(void) { return card_new_stream_on(0); }
int card_of_stream(uint64_t stream) { return card_is_one_of_several() ? (int)(stream >> 40) % card_count() : 0; }

static size_t find(uint64_t stream) {
    size_t index = 0;
    while (index < captured_count && captured[index].stream != stream) index++;
    return index;
}

static int join(uint64_t stream, uint64_t id, int origin) {
    if (captured_count == MOST_CAPTURED) device_unexpected("too many captured streams");
    captured[captured_count].stream = stream;
    captured[captured_count].id = id;
    captured[captured_count].broken = 0;
    captured[captured_count++].origin = origin;
    return SUCCESS;
}

uint64_t card_capture(uint64_t stream) {
    pthread_mutex_lock(&lock);
    size_t index = find(stream);
    uint64_t id = index < captured_count ? captured[index].id : 0;
    pthread_mutex_unlock(&lock);
    return id;
}

int card_capture_status(uint64_t stream) {
    pthread_mutex_lock(&lock);
    size_t index = find(stream);
    int status = index == captured_count ? 0 : captured[index].broken ? 2 : 1;
    pthread_mutex_unlock(&lock);
    return status;
}

int card_break_captures(void) {
    pthread_mutex_lock(&lock);
    int any = captured_count > 0;
    for (size_t i = 0; i < captured_count; i++) captured[i].broken = 1;
    pthread_mutex_unlock(&lock);
    return any;
}

int card_ask(device_event *event) {
    uint64_t id = (uint64_t)device_event_captured(event);
    if (!id) return device_event_query(event) ? SUCCESS : NOT_READY;
    pthread_mutex_lock(&lock);
    int any = 0;
    for (size_t i = 0; i < captured_count; i++) {
        if (captured[i].id == id) any = captured[i].broken = 1;
    }
    pthread_mutex_unlock(&lock);
    return any ? CAPTURED_EVENT : INVALID_VALUE;
}

static int blocking_captured(int breaks) {
    int any = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < captured_count; i++) {
        if (!(captured[i].stream & BLOCKING)) continue;
        any = 1;
        if (breaks) captured[i].broken = 1;
    }
    pthread_mutex_unlock(&lock);
    return any ? CAPTURE_IMPLICIT : SUCCESS;
}
int card_use_default(void) { return blocking_captured(1); }
int card_blocking_captured(void) { return blocking_captured(0); }

void card_refuse_questions(int error) { refusal = error; }
int card_refusal(void) { return refusal; }

int card_begin_capture(uint64_t stream) {
    pthread_mutex_lock(&lock);
    int result = stream == 0 || find(stream) < captured_count ? INVALID_VALUE : join(stream, ++captures, 1);
    pthread_mutex_unlock(&lock);
    return result;
}

int card_end_capture(uint64_t stream) {
    pthread_mutex_lock(&lock);
    size_t index = find(stream), kept = 0;
    int result = index == captured_count || !captured[index].origin ? CAPTURE_INVALIDATED : SUCCESS;
    uint64_t id = result == SUCCESS ? captured[index].id : 0;
    if (result == SUCCESS && captured[index].broken) result = CAPTURE_INVALIDATED;
    for (size_t i = 0; i < captured_count; i++) {
        if (captured[i].id != id) captured[kept++] = captured[i];
    }
    captured_count = kept;
    pthread_mutex_unlock(&lock);
    return result;
}

void card_wait(uint64_t stream, device_event *event) {
    uint64_t id = card_capture(device_event_stream(event));
    if (!id) return;
    pthread_mutex_lock(&lock);
    if (find(stream) == captured_count) join(stream, id, 0);
    pthread_mutex_unlock(&lock);
}
