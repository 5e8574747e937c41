// A CUDA driver for tests: the card's memory is the host's, and the kernel is decode.cu itself, run on the CPU. Streams
// run as late as they may: when the caller waits for them, and a little of one at each question for an event. So a
// caller that writes to memory before the card has read it is found out. Threads of a block are contexts of one thread
// that take turns: each runs to its next barrier or shuffle. Addresses that a test did not allocate are not caught; the
// tests compare all bytes instead.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

// ---- what decode.cu takes from CUDA ----

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct Index { unsigned x; };
static Index threadIdx, blockIdx;

enum { LANES = 256, STACK = 64 << 10 };
static ucontext_t begin, contexts[LANES];
static jmp_buf home, places[LANES];
static bool is_done[LANES], is_begun[LANES];
static unsigned exchanged[2][LANES], shuffles[LANES];
static std::vector<char> stacks(LANES *STACK);
static std::function<void()> body;

// Lets the others run to where this one is. A jump costs a hundredth of swapcontext, which makes two system calls.
static void turn() {
    if (!_setjmp(places[threadIdx.x])) _longjmp(home, 1);
}

static void enter() {
    body();
    is_done[threadIdx.x] = true;
    turn();
}

static void resume(unsigned t) {
    threadIdx.x = t;
    if (_setjmp(home)) return;
    if (is_begun[t]) _longjmp(places[t], 1);
    is_begun[t] = true;
    swapcontext(&begin, &contexts[t]);
}

static void run_block() {
    for (unsigned t = 0; t < LANES; t++) {
        getcontext(&contexts[t]);
        contexts[t].uc_stack.ss_sp = stacks.data() + t * STACK;
        contexts[t].uc_stack.ss_size = STACK;
        contexts[t].uc_link = &begin;
        makecontext(&contexts[t], enter, 0);
        is_done[t] = is_begun[t] = false;
        shuffles[t] = 0;
    }
    for (bool is_left = true; is_left;) {
        is_left = false;
        for (unsigned t = 0; t < LANES; t++)
            if (!is_done[t]) {
                resume(t);
                is_left = true;
            }
    }
}

// Lanes of a warp meet at shuffles, all threads of the block at barriers. A shuffle publishes, meets, and reads; the
// next one publishes elsewhere, because a lane may be there before another has read.
static unsigned arrived[LANES / 32], epoch[LANES / 32], at_barrier, barrier_epoch;
static void meet_warp() {
    unsigned w = threadIdx.x / 32, mine = epoch[w];
    if (++arrived[w] == 32) {
        arrived[w] = 0;
        epoch[w]++;
        return;
    }
    while (epoch[w] == mine) turn();
}
static void __syncthreads() {
    unsigned mine = barrier_epoch;
    if (++at_barrier == LANES) {
        at_barrier = 0;
        barrier_epoch++;
        return;
    }
    while (barrier_epoch == mine) turn();
}
static unsigned shuffle(unsigned value, unsigned from) {
    unsigned t = threadIdx.x, *place = exchanged[shuffles[t]++ & 1];
    place[t] = value;
    meet_warp();
    return place[t / 32 * 32 + from % 32];
}
static unsigned __shfl_sync(unsigned, unsigned v, int from) { return shuffle(v, from); }
static unsigned __shfl_xor_sync(unsigned, unsigned v, int d) { return shuffle(v, (threadIdx.x & 31) ^ d); }
static unsigned __shfl_up_sync(unsigned, unsigned v, int d) {
    unsigned lane = threadIdx.x & 31;
    return shuffle(v, (int)lane >= d ? lane - d : lane);
}
template <class T> static T __ldg(const T *p) { return *p; }
static unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static unsigned __popc(unsigned x) { return __builtin_popcount(x); }
static unsigned __funnelshift_r(unsigned low, unsigned high, unsigned s) {
    return (unsigned)((((uint64_t)high << 32) | low) >> (s & 31));
}
static unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
    uint64_t bytes = ((uint64_t)y << 32) | x;
    unsigned out = 0;
    for (int k = 0; k < 4; k++) {
        unsigned pick = s >> 4 * k & 15, byte = bytes >> 8 * (pick & 7) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        out |= byte << 8 * k;
    }
    return out;
}
#define __device__ static
#define __forceinline__ inline
#define __global__
#define __shared__ static
#define __align__(n) alignas(n)
#define __launch_bounds__(n)
static unsigned char shared_memory[256 << 10] __attribute__((aligned(64)));
#include "decode_for_cpu.h"

// ---- the driver ----

static std::recursive_mutex lock;
using Held = std::lock_guard<std::recursive_mutex>;
static unsigned long copies, batches, launches, pending;
static bool has_batches = true, is_broken = false;
// Calls that are refused when they are made, after so many that are not; -1: none.
static int until_refused = -1;
static bool is_refused() { return until_refused >= 0 && until_refused-- == 0; }

struct Stream {
    std::vector<std::function<int()>> work;
    size_t done = 0;
    int status = 0;

    int run_to(size_t end) {
        while (done < end) {
            // What the work calls may add to the list.
            auto next = std::move(work[done++]);
            if (int failed = next()) status = failed;
        }
        return status;
    }
};
// An event stands behind the first `at` pieces of work of a stream.
struct Event {
    Stream *stream = nullptr;
    size_t at = 0;
    unsigned asked = 0;
    bool is_over = false;
};
static int later(void *stream, std::function<int()> work) {
    Held held(lock);
    if (!stream) return work();
    pending++;
    ((Stream *)stream)->work.push_back([work] {
        pending--;
        return work();
    });
    return 0;
}
static size_t pinned, most_pinned, registered, most_registered;
static std::vector<std::pair<void *, size_t>> pins;

static int launch(unsigned grid, unsigned room, const Chunk *chunks, u32 table, u32 *error) {
    launches++;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++) {
        // What a block finds in shared memory is not known.
        memset(shared_memory, 0xee, sizeof shared_memory);
        body = [=] { gapless_decode(chunks, table, error); };
        run_block();
        for (size_t k = room; k < sizeof shared_memory; k++)
            if (shared_memory[k] != 0xee) return 700;
    }
    return 0;
}

extern "C" {
int cuGetErrorString(int, const char **text) { *text = "error"; return 0; }
int cuInit(unsigned) { return 0; }
int cuDeviceGet(int *out, int number) { *out = number; return number == 0 ? 0 : 101; }
int cuDeviceGetAttribute(int *out, int attribute, int) { *out = attribute == 97 ? 227 << 10 : 0; return 0; }
int cuDevicePrimaryCtxRetain(void **out, int) { *out = (void *)16; return 0; }
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuCtxPushCurrent_v2(void *) { return 0; }
int cuCtxPopCurrent_v2(void **out) { *out = (void *)16; return 0; }
int cuMemHostAlloc(void **out, size_t size, unsigned) {
    Held held(lock);
    *out = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    if (!*out) return 2;
    memset(*out, 0xa5, size);
    pins.push_back({*out, size});
    pinned += size;
    if (pinned > most_pinned) most_pinned = pinned;
    return 0;
}
int cuMemFreeHost(void *at) {
    Held held(lock);
    for (auto &pin : pins)
        if (pin.first == at) {
            pinned -= pin.second;
            pin = pins.back();
            pins.pop_back();
            free(at);
            return 0;
        }
    return 1;
}
int cuMemHostRegister_v2(void *at, size_t size, unsigned flags) {
    Held held(lock);
    if (getenv("TEST_NO_REGISTER") || (uintptr_t)at % 4096 || !size) return 1;
    // As a driver pins pages: those of a file past its end cannot be had.
    std::vector<unsigned char> there(size / 4096 + 1);
    if (mincore(at, size, there.data())) return 1;
    pins.push_back({at, size});
    registered += size;
    if (flags & 8) most_registered = registered > most_registered ? registered : most_registered;
    return 0;
}
int cuMemHostUnregister(void *at) {
    Held held(lock);
    for (auto &pin : pins)
        if (pin.first == at) {
            registered -= pin.second;
            pin = pins.back();
            pins.pop_back();
            return 0;
        }
    return 1;
}
// Streams and events are few, and not freed: who uses one after its end is found out.
int cuStreamCreate(void **out, unsigned) { *out = new Stream; return 0; }
int cuStreamDestroy_v2(void *stream) {
    Held held(lock);
    Stream *at = (Stream *)stream;
    at->run_to(at->work.size());
    at->status = 400;
    return 0;
}
int cuStreamSynchronize(void *stream) {
    Held held(lock);
    return stream ? ((Stream *)stream)->run_to(((Stream *)stream)->work.size()) : 0;
}
int cuEventCreate(void **out, unsigned) { *out = new Event; return 0; }
int cuEventDestroy_v2(void *event) {
    Held held(lock);
    ((Event *)event)->is_over = true;
    return 0;
}
int cuEventRecord(void *event, void *stream) {
    Held held(lock);
    if (((Event *)event)->is_over) return 400;
    if (stream && is_refused()) return 2;
    *(Event *)event = {(Stream *)stream, stream ? ((Stream *)stream)->work.size() : 0, 0, false};
    return 0;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    Held held(lock);
    Event now = *(Event *)event;
    if (now.is_over) return 400;
    ((Stream *)stream)->work.push_back([now] { return now.stream ? now.stream->run_to(now.at) : 0; });
    return 0;
}
int cuEventQuery(void *event) {
    Held held(lock);
    Event &at = *(Event *)event;
    if (at.is_over) return 400;
    if (!at.stream) return 0;
    // Every third question the card has done a little more.
    if (at.stream->done < at.at && ++at.asked % 3 == 0) at.stream->run_to(at.stream->done + 1);
    return at.stream->status ? at.stream->status : at.stream->done < at.at ? 600 : 0;
}
int cuEventElapsedTime(float *out, void *, void *) { *out = 1; return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    return later(stream, [=] {
        memcpy((void *)to, from, size);
        // A card that breaks does it in the middle of things.
        return ++copies % 3 == 0 && is_broken ? 700 : 0;
    });
}
struct Attributes { int order, hints[4]; unsigned flags; };
int cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *sizes, size_t count, Attributes *attributes, size_t *first,
                       size_t kinds, size_t *failed, void *stream) {
    *failed = (size_t)-1;
    if (!has_batches) return 801;
    if (!count || kinds != 1 || *first || attributes->order != 1 || attributes->flags || !stream) return 1;
    for (size_t k = 0; k < count; k++)
        if (!sizes[k]) return 1;
    {
        Held held(lock);
        batches++;
    }
    // The copies of a batch have no order: the last one comes first.
    for (size_t k = count; k-- > 0;) cuMemcpyHtoDAsync_v2(to[k], (const void *)from[k], sizes[k], stream);
    return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    return later(stream, [=] {
        memcpy(to, (const void *)from, size);
        return 0;
    });
}
int cuModuleLoadData(void **out, const void *image) {
    *out = (void *)64;
    return getenv("TEST_NO_KERNEL") || !strstr((const char *)image, "gapless_decode") ? 209 : 0;
}
int cuModuleUnload(void *) { return 0; }
int cuModuleGetFunction(void **out, void *, const char *) { *out = (void *)80; return 0; }
int cuFuncSetAttribute(void *, int, int) { return 0; }
int cuLaunchKernel(void *, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned room,
                   void *stream, void **arguments, void **) {
    if (block != LANES || room > sizeof shared_memory) return 1;
    {
        Held held(lock);
        if (is_refused()) return 2;
    }
    auto chunks = *(const Chunk **)arguments[0];
    auto table = *(u32 *)arguments[1];
    auto error = *(u32 **)arguments[2];
    return later(stream, [=] { return launch(grid, room, chunks, table, error); });
}
size_t test_registered(void) { return registered; }
size_t test_most_registered(void) { return most_registered; }
size_t test_most_pinned(void) { return most_pinned; }
size_t test_pinned(void) { return pinned; }
unsigned long test_launches(void) { return launches; }
size_t test_batches(void) { return batches; }
// Whether the driver takes batches, and whether copies fail: each call changes it.
size_t test_toggle_batches(void) { return has_batches = !has_batches; }
// Refuses one record of an event or launch of a kernel: the first, the second and so on up to the sixth.
size_t test_refuse_next(void) {
    static int next = 0;
    until_refused = next++ % 6;
    return 0;
}
size_t test_refuse_none(void) { until_refused = -1; return 0; }
// Copies and kernels that are not done.
size_t test_pending(void) {
    Held held(lock);
    return pending;
}
size_t test_toggle_broken(void) { return is_broken = !is_broken; }
}
