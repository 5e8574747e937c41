/* The card as a process with Python in it sees it: the device of ../standin, opened at load time, with the parts that
 * only such a process needs.
 *
 * capacity   STANDIN_CAPACITY bytes, 4 GiB and a bit if it is not set.
 * events     Complete as soon as they are recorded, as on a card that is infinitely fast; after card_hold(1) only by a
 *            synchronisation or device_complete, as in the bench without Python. Unlike there, recording or destroying
 *            an incomplete event is fine.
 * streams    A stream is a number; one that waits for the default stream has the bit BLOCKING. It can be captured into
 *            a graph, which remembers nothing.
 * captures   By the rules of a real driver (../live/capture_rules.py). An event that is recorded on a captured stream
 *            is that capture's: a question about it breaks the capture, and fails when that is over. Waiting for the
 *            context, and an event behind all its work, break every capture; work and events of the default stream
 *            break those of blocking streams. Frees, and the unloading of a module, wait and break nothing.
 * contents   Nothing is stored on the card: kernels and the runtime's copies do nothing, and what comes back from it is
 *            zeros. Only the driver's fills and copies (contents.c) meet bytes that are there, behind mapped addresses,
 *            as checked mode needs them.
 *
 * Tests call these functions, and those of device.h, with ctypes. */

#ifndef GAPLESS_CARD_H
#define GAPLESS_CARD_H

#include "../standin/device.h"

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101, NOT_READY = 600, NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907
};

/* Waits until Python is being torn down, then has `alloc` serve a request, and says "served" on the standard output. */
void card_alloc_at_the_end(void *(*alloc)(size_t, int, void *));
void card_hold(int hold);
void card_record(device_event *event, uint64_t stream);
void card_destroy(device_event *event);
uint64_t card_new_stream(void);
enum { BLOCKING = 0x10 };
/* CUDA's status of a question about an event: CAPTURED_EVENT breaks a capture. */
int card_ask(device_event *event);
/* Something is queued on the default stream: captures of blocking streams are broken. The status. */
int card_use_default(void);
int card_blocking_captured(void);

/* The bytes of a handle as a file that another process can map; -1 if there is none, or no descriptor for it. The
 * descriptor is new. */
int contents_file(uint64_t handle);
/* From now on the bytes of a handle are those of a file. Its descriptor stays the caller's, and is not needed later. */
void contents_adopt(uint64_t handle, int file, uint64_t size);

/* The id of the capture that `stream` is in, 0 if there is none. */
uint64_t card_capture(uint64_t stream);
/* CUDA's status of a stream: 0 not captured, 1 captured, 2 in a capture that failed and was not ended yet. */
int card_capture_status(uint64_t stream);
int card_begin_capture(uint64_t stream);
int card_end_capture(uint64_t stream);
/* Something that no capture allows was done: every open one has failed. Whether there was one. */
int card_break_captures(void);
/*
 * From now on asking which capture a stream is in fails with `error`, as for the default stream beside a blocking one;
 * 0 ends that.
 */
void card_refuse_questions(int error);
int card_refusal(void);
/* A stream that waits for an event of a captured stream joins its capture. */
void card_wait(uint64_t stream, device_event *event);

/* cards.c: several cards in one process. */
int card_is_one_of_several(void);
int card_reach_each_other(int a, int b);
void card_created(uint64_t handle, int card);
int card_granted(uint64_t addr, uint64_t size, int card, int flags);
int card_can_use(int card, uint64_t addr, uint64_t size);
int card_of_address(uint64_t addr);
/* A stream of a card, and the card of a stream. */
uint64_t card_new_stream_on(int card);
int card_of_stream(uint64_t stream);

/* faults.c: a driver call begins, and fails if the answer is not 0; whether an address may only be read. */
int card_enter(void);
int card_is_read_only(uint64_t addr);

#endif
