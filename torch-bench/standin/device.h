/* The device of the bench: one card that exists only as bookkeeping. device.c owns its state; runtime.c and
 * driver_api.c put CUDA's names on it. Nothing is ever stored at the addresses handed out. Policies that a model has to
 * mirror are stated here:
 *
 * memory     A card has `capacity` bytes. A request that would take more than is left fails; nothing else does. What
 *            counts is the exact size asked for, of segments and of physical handles alike. A handle's memory is back
 *            when the handle is released and unmapped.
 * addresses  Segments (cudaMalloc) and reserved ranges (cuMemAddressReserve) come from two regions. In each the lowest
 *            gap that is large enough is taken; sizes are rounded up to 2 MiB for that, so all addresses are multiples
 *            of 2 MiB (or of a larger alignment that a reservation asks for). After device_place_as_driver segments go
 *            where the driver of a real card puts them.
 * events     A recorded event is incomplete until device_complete, or a synchronisation that covers it: of the event
 *            (with all recorded before it on its stream), of its stream, or of the device. cudaFree and cuMemUnmap
 *            complete nothing. Events that one operation recorded on one stream complete together: the allocator
 *            records those of deferred frees in the order of a hash of host pointers, which changes from run to run,
 *            and no answer may depend on it.
 * streams    Handles are whatever numbers the caller chooses; 0 is the default stream. A stream captures from
 *            device_capture(stream, 1) to device_capture(stream, 0); for memory and events that changes nothing. */

#ifndef GAPLESS_STANDIN_DEVICE_H
#define GAPLESS_STANDIN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEVICE_GRANULE ((uint64_t)2 << 20)
#define DEVICE_SEGMENTS ((uint64_t)0x700000000000)      /* where segments begin */
#define DEVICE_SYMBOLS (DEVICE_SEGMENTS + ((uint64_t)1 << 42))  /* where they end, and symbols of modules begin */
#define DEVICE_RANGES ((uint64_t)0x1000000000000000)    /* where reserved ranges begin */


/* The allocator's questions to the device about events: from them the bench knows the order in which it polls. */
enum { DEVICE_POLL = 100, DEVICE_EVENT_SYNC = 101, DEVICE_STREAM_SYNC = 102, DEVICE_SYNC = 103 };
typedef void (*device_watcher)(uint32_t what, uint64_t stream, uint64_t ready);

typedef struct device_event device_event;

void device_open(uint64_t capacity, device_watcher watcher);
void device_place_as_driver(void);
uint64_t device_capacity(void);
uint64_t device_used(void);
/* Events that are incomplete now. */
uint64_t device_pending(void);

/* Both return 0 if there is no memory. */
uint64_t device_malloc(uint64_t size);
uint64_t device_create(uint64_t size);
void device_free(uint64_t addr);
void device_release(uint64_t handle);

uint64_t device_reserve(uint64_t size, uint64_t alignment);
void device_unreserve(uint64_t addr, uint64_t size);
void device_map(uint64_t addr, uint64_t size, uint64_t handle);
void device_unmap(uint64_t addr, uint64_t size);
/* A handle of another process's memory, whose bytes count there and not here. */
uint64_t device_import(uint64_t size);
/* The size of a handle. */
uint64_t device_handle_size(uint64_t id);
/* Has `gone` called with each handle that is released and unmapped, before another one gets its number. */
void device_watch_handles(void (*gone)(uint64_t id));
/* The handle that is mapped at `addr`, 0 if none is; the offset in the handle, and how many of its bytes follow. */
uint64_t device_behind(uint64_t addr, uint64_t *offset, uint64_t *left);
/* True if all of it is in one segment: memory of cudaMalloc, which has no contents. */
int device_in_segment(uint64_t addr, uint64_t size);

device_event *device_event_new(void);
void device_event_delete(device_event *event);
/* Takes an incomplete event out of its stream's queue, as if it had never been recorded. */
void device_event_forget(device_event *event);
void device_event_record(device_event *event, uint64_t stream);
int device_event_query(device_event *event);
/* The stream that it was recorded on last. */
uint64_t device_event_stream(device_event *event);
/* Which capture it was recorded in last, by a number that the caller chooses; 0: none. */
void device_event_capture(device_event *event, int captured);
int device_event_captured(device_event *event);
void device_event_sync(device_event *event);
void device_stream_sync(uint64_t stream);
void device_sync(void);
/* Sets whether a stream captures, as cudaStreamIsCapturing tells it. */
void device_capture(uint64_t stream, int captures);
int device_captures(uint64_t stream);
/* Begins an operation. */
void device_tick(void);
/* Completes the incomplete events of a stream that the oldest `count` operations recorded. */
void device_complete(uint64_t stream, uint64_t count);

/*
 * A call that the bench has no answer for: says so and ends the process, since a silent zero would look like an answer.
 */
void device_unexpected(const char *what) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif
#endif
