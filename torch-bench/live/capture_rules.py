"""Asks the driver itself, without torch, for the effects of its calls on captures, and the work that they wait for.

    python torch-bench/live/capture_rules.py [section ...]

Each line is one question. A section runs in a process of its own, so that one that crashes or hangs says so.

matrix    each call beside an open capture: its own answer, and whether the capture survived it
captured  events that were recorded on a stream in a capture: during it, after it, and what the graph has of them
cover     which marks and waits see work of which streams: held work is noticed or not
locks     what other threads can do while a call waits for work
waits     more calls that may wait: whether they do, what they hold up, and what they do to captures
race      captures beside each kind of mark, as fast as both can go
dead      calls with the handle of a destroyed stream
price     nanoseconds of each call
numbers   the driver's own numbers of streams and contexts
"""

import ctypes
import os
import subprocess
import sys
import threading
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
MODES = {GLOBAL: "global", THREAD_LOCAL: "thread", RELAXED: "relaxed"}
LEGACY, PER_THREAD = 1, 2
NONBLOCKING, BLOCKING = 1, 0
MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")

# Spins until a word of the host's memory is not zero.
SPIN = b""".version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .u64 %a; .reg .u32 %v; .reg .pred %q;
    ld.param.u64 %a, [flag];
again:
    ld.volatile.global.u32 %v, [%a];
    setp.eq.u32 %q, %v, 0;
    @%q bra again;
    ret;
}
\0"""


def call(name, *arguments):
    function = getattr(cuda, name, None)
    return 500 if function is None else function(*arguments)


# The module that the allocator unloads to wait for all work (crates/gapless-cuda/src/meter.rs).
NOTHING = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry gapless_waits()\n{\nret;\n}\n\0"


def nothing_loaded():
    module = c_void_p()
    must("cuModuleLoadData", byref(module), NOTHING)
    return module


def must(name, *arguments):
    status = call(name, *arguments)
    if status:
        raise RuntimeError(f"{name} gave {status}")


def made(name, *arguments, kind=c_void_p):
    out = kind()
    must(name, byref(out), *arguments)
    return out.value


def P(handle):
    return c_void_p(handle)


class Card:
    """The primary context of the first card, current in this thread, and what sections need of it."""

    def __init__(self):
        must("cuInit", c_uint(0))
        self.device = made("cuDeviceGet", c_int(0), kind=c_int)
        self.context = made("cuDevicePrimaryCtxRetain", c_int(self.device))
        self.enter()
        self.dummy = self.alloc(MIB)
        self.word = made("cuMemHostAlloc", c_size_t(4096), c_uint(3))
        self.flag = ctypes.cast(self.word, ctypes.POINTER(ctypes.c_uint32))
        self.flag[0] = 0
        self.flag_there = made("cuMemHostGetDevicePointer_v2", P(self.word), c_uint(0), kind=c_uint64)

    def enter(self, context=None):
        must("cuCtxSetCurrent", P(context or self.context))

    def alloc(self, size):
        return made("cuMemAlloc_v2", c_size_t(size), kind=c_uint64)

    def stream(self, flags=NONBLOCKING):
        return made("cuStreamCreate", c_uint(flags))

    def event(self):
        return made("cuEventCreate", c_uint(2))

    def mode(self, mode):
        was = c_int(mode)
        call("cuThreadExchangeStreamCaptureMode", byref(was))
        return was.value

    def capturing(self, stream):
        """The status as a word, or the error."""
        status = c_int(-1)
        error = call("cuStreamIsCapturing", P(stream), byref(status))
        return f"error {error}" if error else {0: "none", 1: "active", 2: "INVALIDATED"}.get(status.value)

    def begin(self, stream, mode=RELAXED):
        return call("cuStreamBeginCapture_v2", P(stream), c_int(mode))

    def end(self, stream):
        """The status, and how many nodes the graph has."""
        graph, count = c_void_p(), c_size_t(0)
        status = call("cuStreamEndCapture", P(stream), byref(graph))
        if graph.value:
            call("cuGraphGetNodes", graph, None, byref(count))
            call("cuGraphDestroy", graph)
        return status, count.value

    def fill(self, stream):
        return call("cuMemsetD32Async", c_uint64(self.dummy), c_uint(7), c_size_t(64), P(stream))

    # Work that is held until `release`.
    def hold(self, stream):
        self.flag[0] = 0
        return call("cuStreamWaitValue32_v2", P(stream), c_uint64(self.flag_there), c_uint(1), c_uint(0))

    def hold_by_kernel(self, stream):
        self.flag[0] = 0
        module, function = c_void_p(), c_void_p()
        must("cuModuleLoadData", byref(module), SPIN)
        must("cuModuleGetFunction", byref(function), module, b"spin")
        value = c_uint64(self.flag_there)
        arguments = (c_void_p * 1)(ctypes.addressof(value))
        one = c_uint(1)
        return call("cuLaunchKernel", function, one, one, one, one, one, one, c_uint(0), P(stream), arguments, None)

    def release(self):
        self.flag[0] = 1


def in_thread(card, work, seconds=None):
    """Runs it in another thread, with the card's context. `(finished, result)`."""
    result = []

    def run():
        card.enter()
        result.append(work())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive(), result[0] if result else None


def map_a_page(card):
    kinds = (c_int * 2)(1, 0)  # pinned, no handles
    properties = (ctypes.c_byte * 32)()
    ctypes.memmove(properties, kinds, 8)
    where = (c_int * 2)(1, card.device)
    ctypes.memmove(ctypes.byref(properties, 8), where, 8)
    addr, handle = c_uint64(), c_uint64()
    must("cuMemAddressReserve", byref(addr), c_size_t(2 * MIB), c_size_t(0), c_uint64(0), c_uint64(0))
    must("cuMemCreate", byref(handle), c_size_t(2 * MIB), properties, c_uint64(0))
    must("cuMemMap", addr, c_size_t(2 * MIB), c_size_t(0), handle, c_uint64(0))
    access = (c_int * 3)(1, card.device, 3)
    must("cuMemSetAccess", addr, c_size_t(2 * MIB), access, c_size_t(1))
    return addr.value, handle.value


def unmap_a_page(addr, handle):
    first = call("cuMemUnmap", c_uint64(addr), c_size_t(2 * MIB))
    return first or call("cuMemRelease", c_uint64(handle)) or call("cuMemAddressFree", c_uint64(addr), c_size_t(2 * MIB))


def all_of_a_page(card):
    try:
        return unmap_a_page(*map_a_page(card))
    except RuntimeError as error:
        return str(error)


def calls_beside(card):
    """Name, and a function of the captured stream. Everything that it needs was made before the capture."""
    other, blocking = card.stream(), card.stream(BLOCKING)
    plain, old, spare = card.event(), card.event(), card.event()
    must("cuEventRecord", P(plain), P(other))
    blocks = [card.alloc(size) for size in (4096, 64 * MIB) for _ in range(40)]
    pinned = [made("cuMemHostAlloc", c_size_t(65536), c_uint(1)) for _ in range(40)]
    pages = [map_a_page(card) for _ in range(40)]
    gone = [card.stream() for _ in range(40)]
    status, out, number = c_int(), c_void_p(), c_uint64()

    def info(stream):
        first = call("cuStreamGetCaptureInfo_v2", P(stream), byref(status), byref(number), None, None, None)
        return f"{first} status {status.value} id {'set' if number.value else 0}"

    def record_query(stream):
        return call("cuEventRecord", P(spare), P(stream)), call("cuEventQuery", P(spare))

    def record_wait(stream):
        return call("cuEventRecord", P(spare), P(stream)), call("cuEventSynchronize", P(spare))

    def record_destroy(stream):
        event = card.event()
        return call("cuEventRecord", P(event), P(stream)), call("cuEventDestroy_v2", P(event))

    def record_again(stream):
        first = call("cuEventRecord", P(spare), P(stream))
        return first, call("cuEventRecord", P(spare), P(other)), call("cuEventQuery", P(spare))

    def create():
        event = c_void_p()
        return call("cuEventCreate", byref(event), c_uint(2)) or call("cuEventDestroy_v2", event)

    def create_stream():
        stream = c_void_p()
        return call("cuStreamCreate", byref(stream), c_uint(1)) or call("cuStreamDestroy_v2", stream)

    def allocate():
        addr = c_uint64()
        return call("cuMemAlloc_v2", byref(addr), c_size_t(MIB)) or call("cuMemFree_v2", addr)

    free, total = c_size_t(), c_size_t()
    yield "record on it", lambda s: call("cuEventRecord", P(spare), P(s))
    yield "record on it, query", record_query
    yield "record on it, synchronize", record_wait
    yield "record on it, destroy", record_destroy
    yield "record on it, record elsewhere, query", record_again
    yield "record on another", lambda s: call("cuEventRecord", P(plain), P(other))
    yield "record on a blocking one", lambda s: call("cuEventRecord", P(plain), P(blocking))
    yield "record on legacy", lambda s: call("cuEventRecord", P(plain), P(LEGACY))
    yield "record on 0", lambda s: call("cuEventRecord", P(plain), P(0))
    yield "record on the thread's", lambda s: call("cuEventRecord", P(plain), P(PER_THREAD))
    yield "query an event of another", lambda s: call("cuEventQuery", P(plain))
    yield "query a new event", lambda s: call("cuEventQuery", P(old))
    yield "synchronize an event of another", lambda s: call("cuEventSynchronize", P(plain))
    yield "wait of another for an event", lambda s: call("cuStreamWaitEvent", P(other), P(plain), c_uint(0))
    yield "create and destroy an event", lambda s: create()
    yield "is it capturing", lambda s: (call("cuStreamIsCapturing", P(s), byref(status)), status.value)
    yield "is legacy capturing", lambda s: (call("cuStreamIsCapturing", P(LEGACY), byref(status)), status.value)
    yield "info of it", info
    yield "info of legacy", lambda s: info(LEGACY)
    yield "query it", lambda s: call("cuStreamQuery", P(s))
    yield "query another", lambda s: call("cuStreamQuery", P(other))
    yield "query a blocking one", lambda s: call("cuStreamQuery", P(blocking))
    yield "query legacy", lambda s: call("cuStreamQuery", P(LEGACY))
    yield "synchronize another", lambda s: call("cuStreamSynchronize", P(other))
    yield "synchronize legacy", lambda s: call("cuStreamSynchronize", P(LEGACY))
    yield "context: record", lambda s: call("cuCtxRecordEvent", P(card.context), P(plain))
    yield "context: synchronize", lambda s: call("cuCtxSynchronize")
    yield "context of it", lambda s: call("cuStreamGetCtx", P(s), byref(out))
    yield "id of it", lambda s: call("cuStreamGetId", P(s), byref(number))
    yield "allocate and free 1 MiB", lambda s: allocate()
    yield "free 4 KiB", lambda s: call("cuMemFree_v2", c_uint64(blocks.pop(0)))
    yield "free 64 MiB", lambda s: call("cuMemFree_v2", c_uint64(blocks.pop()))
    yield "free pinned", lambda s: call("cuMemFreeHost", P(pinned.pop()))
    yield "create to release a page", lambda s: all_of_a_page(card)
    yield "unmap and release a page", lambda s: unmap_a_page(*pages.pop())
    yield "memory info", lambda s: call("cuMemGetInfo_v2", byref(free), byref(total))
    yield "create and destroy a stream", lambda s: create_stream()
    yield "destroy a stream", lambda s: call("cuStreamDestroy_v2", P(gone.pop()))
    yield "fill on legacy", lambda s: card.fill(LEGACY)
    yield "fill on a blocking one", lambda s: card.fill(blocking)


def section_matrix():
    card = Card()
    print("capture of a stream that is (not) blocking, its mode; who calls, in which mode")
    variants = [
        (flags, mode, elsewhere, own)
        for flags in (NONBLOCKING, BLOCKING)
        for mode in MODES
        for elsewhere in (False, True)
        for own in (GLOBAL, RELAXED)
    ]
    for name, work in calls_beside(card):
        answers = {}
        for flags, mode, elsewhere, own in variants:
            stream = card.stream(flags)
            if card.begin(stream, mode):
                continue
            card.fill(stream)

            def ask(own=own, stream=stream, work=work):
                was = card.mode(own)
                said = work(stream)
                card.mode(was)
                return said

            said = in_thread(card, ask)[1] if elsewhere else ask()
            state = card.capturing(stream)
            ended = card.end(stream)
            call("cuStreamDestroy_v2", P(stream))
            whole = state == "active" and ended == (0, 1)
            outcome = f"{said}: " + ("whole" if whole else f"HARMED {state}, end {ended}")
            place = f"{'blocking' if flags == BLOCKING else 'plain'}/{MODES[mode]}/"
            place += f"{'other' if elsewhere else 'same'}/{'relaxed' if own else 'default'}"
            answers.setdefault(outcome, []).append(place)
        for outcome, places in answers.items():
            where = "always" if len(answers) == 1 else f"{len(places)} of {len(variants)}: {' '.join(places)}"
            print(f"{name:40} -> {outcome}\n{'':44}{where}")


def section_captured():
    card = Card()
    stream, other = card.stream(), card.stream()
    for marks in (0, 1, 5):
        card.begin(stream)
        for _ in range(3):
            card.fill(stream)
            for _ in range(marks):
                must("cuEventRecord", P(card.event()), P(stream))
        print(f"{marks} marks after each of 3 fills: end gives {card.end(stream)}")
    event = card.event()
    for label, ending in (("ended", True), ("invalidated, then ended", False)):
        card.begin(stream)
        card.fill(stream)
        recorded = call("cuEventRecord", P(event), P(stream))
        if not ending:
            call("cuStreamQuery", P(stream))
            print(f"record on an invalidated capture: {call('cuEventRecord', P(card.event()), P(stream))}")
        ended = card.end(stream)
        said = [call("cuEventQuery", P(event)), call("cuEventSynchronize", P(event))]
        said.append(call("cuStreamWaitEvent", P(other), P(event), c_uint(0)))
        print(f"capture {label} {ended}; record {recorded}; query, synchronize, wait afterwards: {said}")
        card.begin(stream)
        card.fill(stream)
        said = [call("cuEventQuery", P(event)), call("cuEventSynchronize", P(event))]
        print(f"  the same asked in the stream's next capture: {said}, that one is {card.capturing(stream)}", card.end(stream))
        again = call("cuEventRecord", P(event), P(other)), call("cuEventQuery", P(event))
        print(f"  recorded elsewhere, query: {again}")
    # A stream that joined.
    card.begin(stream)
    must("cuEventRecord", P(event), P(stream))
    print("join:", call("cuStreamWaitEvent", P(other), P(event), c_uint(0)), card.capturing(other))
    mark = card.event()
    card.fill(other)
    print("record on the joined:", call("cuEventRecord", P(mark), P(other)))
    must("cuEventRecord", P(event), P(other))
    must("cuStreamWaitEvent", P(stream), P(event), c_uint(0))
    print("end:", card.end(stream), "joined is", card.capturing(other), "query of its mark:", call("cuEventQuery", P(mark)))
    # A mark before the capture, queried within.
    card.hold(stream)
    must("cuEventRecord", P(mark), P(stream))
    began = card.begin(stream)
    said = [call("cuEventQuery", P(mark))]
    card.release()
    time.sleep(0.05)
    said.append(call("cuEventQuery", P(mark)))
    print(f"a mark before the capture ({began}), queried within, held and done: {said}, {card.capturing(stream)}", card.end(stream))


def green(card):
    """A stream of a green context, and its context."""
    resource, parts, rest, count = ((ctypes.c_byte * 4096)() for _ in range(4))
    must("cuDeviceGetDevResource", c_int(card.device), resource, c_int(1))
    number = c_uint(1)
    must("cuDevSmResourceSplitByCount", parts, byref(number), resource, rest, c_uint(0), c_uint(16))
    description = made("cuDevResourceGenerateDesc", parts, c_uint(1))
    context = made("cuGreenCtxCreate", P(description), c_int(card.device), c_uint(1))
    stream = c_void_p()
    must("cuGreenCtxStreamCreate", byref(stream), P(context), c_uint(1), c_int(0))
    return stream.value, made("cuCtxFromGreenCtx", P(context))


def places(card):
    """The stream on which work is held, and a context to be current meanwhile."""
    yield "plain", card.stream(), None
    yield "blocking", card.stream(BLOCKING), None
    yield "legacy", LEGACY, None
    yield "this thread's", PER_THREAD, None
    context = made("cuCtxCreate_v2", c_uint(0), c_int(card.device))
    yield "of cuCtxCreate", card.stream(), context
    yield "blocking of cuCtxCreate", card.stream(BLOCKING), context
    yield "legacy of cuCtxCreate", LEGACY, context
    card.enter()
    try:
        stream, context = green(card)
        yield "green", stream, None
        yield "legacy of green", LEGACY, context
    except RuntimeError as error:
        print(f"no green context: {error}")
    card.enter()


def observers(card):
    """Marks give an event; waits are called."""
    own, own_blocking, legacy = card.stream(), card.stream(BLOCKING), LEGACY
    event = card.event()

    def mark(record):
        status = record()
        time.sleep(0.02)
        said = call("cuEventQuery", P(event))
        return status or {0: "missed", 600: "SEEN"}.get(said, said)

    def wait(work):
        finished, said = in_thread(card, work, 0.25)
        return f"missed ({said})" if finished else "SEEN"

    sizes = [card.alloc(size) for size in (4096, MIB, 64 * MIB) for _ in range(24)]
    pinned = [made("cuMemHostAlloc", c_size_t(65536), c_uint(1)) for _ in range(24)]
    pages = [map_a_page(card) for _ in range(24)]
    yield "mark: context", lambda: mark(lambda: call("cuCtxRecordEvent", P(card.context), P(event)))
    yield "mark: own stream", lambda: mark(lambda: call("cuEventRecord", P(event), P(own)))
    yield "mark: own blocking stream", lambda: mark(lambda: call("cuEventRecord", P(event), P(own_blocking)))
    yield "mark: legacy", lambda: mark(lambda: call("cuEventRecord", P(event), P(legacy)))
    yield "wait: context", lambda: wait(lambda: call("cuCtxSynchronize"))
    yield "wait: free 4 KiB", lambda: wait(lambda: call("cuMemFree_v2", c_uint64(sizes.pop(0))))
    yield "wait: free 64 MiB", lambda: wait(lambda: call("cuMemFree_v2", c_uint64(sizes.pop())))
    yield "wait: free pinned", lambda: wait(lambda: call("cuMemFreeHost", P(pinned.pop())))
    modules = [nothing_loaded() for _ in range(24)]
    yield "wait: unload a module", lambda: wait(lambda: call("cuModuleUnload", modules.pop()))
    yield "wait: load a module", lambda: wait(lambda: nothing_loaded() and 0)
    yield "wait: unmap", lambda: wait(lambda: call("cuMemUnmap", c_uint64(pages.pop()[0]), c_size_t(2 * MIB)))


def section_cover():
    card = Card()
    watchers = list(observers(card))
    for name, stream, context in places(card):
        for how in ("value", "kernel"):
            if how == "kernel" and context:
                continue
            for label, watch in watchers:
                card.enter(context)
                hold = card.hold if how == "value" else card.hold_by_kernel
                status = hold(stream)
                card.enter()
                time.sleep(0.01)
                said = watch() if status == 0 else f"cannot hold: {status}"
                card.release()
                time.sleep(0.05)
                print(f"held by a {how} on {name:24} {label:28} {said}")
        sys.stdout.flush()
    stream = card.stream()
    for label, watch in watchers:
        stream = card.stream()
        card.hold(stream)
        must("cuStreamDestroy_v2", P(stream))
        said = watch()
        card.release()
        time.sleep(0.05)
        print(f"held on a stream that was destroyed   {label:28} {said}")


def section_locks():
    card = Card()
    held, other, event = card.stream(), card.stream(), card.event()
    blocks = [card.alloc(64 * MIB) for _ in range(40)]
    small = [card.alloc(4096) for _ in range(40)]
    waits = {
        "free 64 MiB": lambda: call("cuMemFree_v2", c_uint64(blocks.pop())),
        "free 4 KiB": lambda: call("cuMemFree_v2", c_uint64(small.pop())),
        "context: synchronize": lambda: call("cuCtxSynchronize"),
    }
    addr, handle = c_uint64(), card.event()
    tasks = {
        "fill on another stream": lambda: card.fill(other),
        "record": lambda: call("cuEventRecord", P(event), P(other)),
        "query": lambda: call("cuEventQuery", P(handle)),
        "begin and end a capture": lambda: (card.begin(other), card.end(other)),
        "allocate": lambda: call("cuMemAlloc_v2", byref(addr), c_size_t(MIB)),
        "map a page": lambda: all_of_a_page(card),
        "create a stream": lambda: card.stream() and 0,
        "synchronize another stream": lambda: call("cuStreamSynchronize", P(other)),
    }
    for hold in (card.hold, card.hold_by_kernel):
        for name, wait in waits.items():
            for task, work in tasks.items():
                hold(held)
                time.sleep(0.01)
                waiting = threading.Thread(target=lambda wait=wait: (card.enter(), wait()), daemon=True)
                waiting.start()
                time.sleep(0.05)
                waits_now = waiting.is_alive()
                finished, said = in_thread(card, work, 0.3)
                card.release()
                waiting.join(5)
                time.sleep(0.02)
                answer = f"goes on ({said})" if finished else "WAITS TOO"
                print(f"{hold.__name__:16} {name:22} {'waits' if waits_now else 'does not wait'}; {task:28} {answer}")


def waiting_calls(card):
    """Calls that may wait for work. Each can be made twelve times."""
    pinned = [made("cuMemHostAlloc", c_size_t(65536), c_uint(1)) for _ in range(12)]
    managed = [made("cuMemAllocManaged", c_size_t(65536), c_uint(1), kind=c_uint64) for _ in range(12)]
    own = [ctypes.create_string_buffer(1 << 20) for _ in range(12)]
    addresses = [(ctypes.addressof(buffer) + 65535) // 65536 * 65536 for buffer in own]
    for address in addresses:
        must("cuMemHostRegister_v2", P(address), c_size_t(65536), c_uint(1))
    modules = []
    for _ in range(12):
        modules.append(c_void_p())
        must("cuModuleLoadData", byref(modules[-1]), SPIN)
    pools, limit = [], c_size_t()
    properties = (ctypes.c_byte * 88)()
    ctypes.memmove(properties, (c_int * 4)(1, 0, 1, card.device), 16)
    for _ in range(12):
        pool = c_void_p()
        if call("cuMemPoolCreate", byref(pool), properties) == 0:
            pools.append(pool)
    call("cuCtxGetLimit", byref(limit), c_int(0))
    stacks = [limit.value + 512 * at for at in range(1, 13)]
    shape = (c_size_t * 2)(64, 64)
    arrays = []
    for _ in range(12):
        arrays.append(c_void_p())
        form = (ctypes.c_byte * 24)()
        ctypes.memmove(form, shape, 16)
        ctypes.memmove(ctypes.byref(form, 16), (c_int * 2)(0x20, 1), 8)
        must("cuArrayCreate_v2", byref(arrays[-1]), form)
    gone = [card.stream() for _ in range(12)]
    empty = [nothing_loaded() for _ in range(12)]
    yield "unload a module that does nothing", lambda: call("cuModuleUnload", empty.pop())
    yield "load a module", lambda: nothing_loaded() and 0
    yield "free pinned", lambda: call("cuMemFreeHost", P(pinned.pop()))
    yield "unregister", lambda: call("cuMemHostUnregister", P(addresses.pop()))
    yield "free managed", lambda: call("cuMemFree_v2", c_uint64(managed.pop()))
    yield "unload a module", lambda: call("cuModuleUnload", modules.pop())
    yield "destroy an array", lambda: call("cuArrayDestroy", arrays.pop())
    yield "destroy a pool", lambda: call("cuMemPoolDestroy", pools.pop()) if pools else "no pools"
    yield "set the stack's limit", lambda: call("cuCtxSetLimit", c_int(0), c_size_t(stacks.pop()))
    yield "trim graph memory", lambda: call("cuDeviceGraphMemTrim", c_int(card.device))
    yield "destroy a stream", lambda: call("cuStreamDestroy_v2", P(gone.pop()))


def section_waits():
    card = Card()
    held, other, event = card.stream(), card.stream(), card.event()
    tasks = {
        "fill": lambda: card.fill(other),
        "record": lambda: call("cuEventRecord", P(event), P(other)),
        "capture": lambda: (card.begin(other), card.end(other)),
    }
    for name, wait in waiting_calls(card):
        lines = []
        for task, work in tasks.items():
            card.hold(held)
            time.sleep(0.01)
            waiting = threading.Thread(target=lambda wait=wait: (card.enter(), wait()), daemon=True)
            waiting.start()
            time.sleep(0.05)
            waits_now = waiting.is_alive()
            finished, _ = in_thread(card, work, 0.3)
            card.release()
            waiting.join(5)
            time.sleep(0.02)
            lines.append(f"{task} {'goes on' if finished else 'WAITS TOO'}")
        answers = {}
        for mode in MODES:
            stream = card.stream()
            if card.begin(stream, mode):
                continue
            card.fill(stream)

            def ask(wait=wait):
                card.mode(RELAXED)
                return wait()

            said = in_thread(card, ask)[1]
            whole = card.end(stream) == (0, 1)
            answers[MODES[mode]] = f"{said} {'whole' if whole else 'HARMED'}"
        print(f"{name:34} {'waits' if waits_now else 'does not wait'}; {', '.join(lines)}; beside captures {answers}")
        sys.stdout.flush()


RACES = ("nothing", "context", "guarded", "bare", "legacy", "beside", "free", "synchronize")


def section_race(kind=None, flags="plain"):
    if kind is None:
        for kind in RACES:
            for flags in ("plain", "blocking"):
                child(["race", kind, flags], 30)
        return
    card = Card()
    streams = [card.stream(BLOCKING if flags == "blocking" else NONBLOCKING) for _ in range(2)]
    own, own_blocking = card.stream(), card.stream(BLOCKING)
    counts, over = {"captures": 0, "harmed": 0, "marks": 0, "refused": 0, "thrown": 0, "captured": 0, "errors": {}}, [False]

    def capture(stream):
        card.enter()
        while not over[0]:
            if card.begin(stream):
                continue
            card.fill(stream)
            card.fill(stream)
            status, nodes = card.end(stream)
            counts["captures"] += 1
            counts["harmed"] += status != 0 or nodes != 2

    def failed(status):
        counts["refused"] += 1
        counts["errors"][status] = counts["errors"].get(status, 0) + 1

    def mark(at):
        card.enter()
        card.mode(RELAXED)
        event, event_own = card.event(), card.event()
        while not over[0]:
            stream = streams[at % len(streams)]
            at += 1
            counts["marks"] += 1
            if kind == "context":
                status = call("cuCtxRecordEvent", P(card.context), P(event))
                failed(status) if status else call("cuEventQuery", P(event))
            elif kind == "guarded":
                if card.capturing(stream) != "none":
                    continue
                status = call("cuEventRecord", P(event), P(stream))
                if status:
                    failed(status)
                elif card.capturing(stream) != "none":
                    counts["thrown"] += 1
                else:
                    said = call("cuEventQuery", P(event))
                    counts["captured"] += said == 907
                    if said not in (0, 600):
                        failed(said)
            elif kind == "bare":
                status = call("cuEventRecord", P(event), P(stream))
                if status:
                    failed(status)
            elif kind in ("legacy", "beside"):
                status = call("cuEventRecord", P(event_own), P(LEGACY if kind == "legacy" else own_blocking))
                failed(status) if status else call("cuEventQuery", P(event_own))
            elif kind == "free":
                addr = c_uint64()
                status = call("cuMemAlloc_v2", byref(addr), c_size_t(4 * MIB)) or call("cuMemFree_v2", addr)
                if status:
                    failed(status)
            elif kind == "synchronize":
                status = call("cuCtxSynchronize")
                if status:
                    failed(status)
            else:
                call("cuEventRecord", P(event), P(own))
                call("cuEventQuery", P(event))

    threads = [threading.Thread(target=capture, args=(stream,)) for stream in streams]
    threads += [threading.Thread(target=mark, args=(at,)) for at in range(3)]
    [thread.start() for thread in threads]
    time.sleep(2)
    over[0] = True
    [thread.join(10) for thread in threads]
    print(f"{kind:12} {flags:9} {counts}")


DEAD = ("record", "capturing", "info", "id", "context", "query", "wait")


def section_dead(kind=None, how="idle"):
    if kind is None:
        for kind in DEAD:
            for how in ("idle", "busy", "reused"):
                child(["dead", kind, how], 30)
        return
    card = Card()
    stream, event, status, number, out = card.stream(), card.event(), c_int(-1), c_uint64(), c_void_p()
    if how == "busy":
        card.hold(stream)
    must("cuStreamDestroy_v2", P(stream))
    again = [card.stream() for _ in range(4)] if how == "reused" else []
    calls = {
        "record": lambda: call("cuEventRecord", P(event), P(stream)),
        "capturing": lambda: call("cuStreamIsCapturing", P(stream), byref(status)),
        "info": lambda: call("cuStreamGetCaptureInfo_v2", P(stream), byref(status), byref(number), None, None, None),
        "id": lambda: call("cuStreamGetId", P(stream), byref(number)),
        "context": lambda: call("cuStreamGetCtx", P(stream), byref(out)),
        "query": lambda: call("cuStreamQuery", P(stream)),
        "wait": lambda: call("cuStreamWaitEvent", P(stream), P(event), c_uint(0)),
    }
    print(f"dead {kind:10} {how:7} {calls[kind]()}, same handle again: {stream in again}")
    card.release()
    sys.stdout.flush()
    os._exit(0)


def section_price():
    card = Card()
    streams = [card.stream() for _ in range(128)]
    events = [card.event() for _ in range(128)]
    blocking, status, number = card.stream(BLOCKING), c_int(), c_uint64()
    addr, mode = c_uint64(), c_int(RELAXED)

    def free(size):
        call("cuMemAlloc_v2", byref(addr), c_size_t(size))
        call("cuMemFree_v2", addr)

    costs = {
        "nothing: cuDriverGetVersion": lambda i: call("cuDriverGetVersion", byref(status)),
        "record on one stream": lambda i: call("cuEventRecord", P(events[0]), P(streams[0])),
        "record on 128 by turns": lambda i: call("cuEventRecord", P(events[i % 128]), P(streams[i % 128])),
        "record on a blocking one": lambda i: call("cuEventRecord", P(events[0]), P(blocking)),
        "query": lambda i: call("cuEventQuery", P(events[0])),
        "capturing": lambda i: call("cuStreamIsCapturing", P(streams[0]), byref(status)),
        "info": lambda i: call("cuStreamGetCaptureInfo_v2", P(streams[0]), byref(status), byref(number), None, None, None),
        "id": lambda i: call("cuStreamGetId", P(streams[0]), byref(number)),
        "exchange mode": lambda i: call("cuThreadExchangeStreamCaptureMode", byref(mode)),
        "context: record": lambda i: call("cuCtxRecordEvent", P(card.context), P(events[0])),
        "allocate and free 4 KiB": lambda i: free(4096),
        "allocate and free 1 MiB": lambda i: free(MIB),
        "allocate and free 64 MiB": lambda i: free(64 * MIB),
        "context: synchronize": lambda i: call("cuCtxSynchronize"),
        "load and unload a module (free: 500 times)": lambda i: call("cuModuleUnload", nothing_loaded()),
        "create and destroy a stream": lambda i: call("cuStreamDestroy_v2", P(card.stream())),
    }
    for name, work in costs.items():
        times = 500 if "free" in name or "create" in name else 5000
        took = []
        for _ in range(5):
            began = time.perf_counter()
            for i in range(times):
                work(i)
            took.append((time.perf_counter() - began) / times * 1e9)
        print(f"{name:32} {min(took):10.0f} ns, with Python's share")


def section_numbers():
    card = Card()
    number = c_uint64()

    def id_of(stream):
        status = call("cuStreamGetId", P(stream), byref(number))
        return f"error {status}" if status else number.value

    streams = [card.stream() for _ in range(4)]
    print("streams", [id_of(stream) for stream in streams], "legacy", id_of(LEGACY), "thread's", id_of(PER_THREAD))
    call("cuStreamDestroy_v2", P(streams[-1]))
    print("after one was destroyed", id_of(card.stream()))
    print("context", call("cuCtxGetId", P(card.context), byref(number)), number.value)
    context = made("cuCtxCreate_v2", c_uint(0), c_int(card.device))
    print("another context", call("cuCtxGetId", P(context), byref(number)), number.value, "its stream", id_of(card.stream()))
    card.enter()
    print("a stream of the first", id_of(card.stream()))


def child(arguments, seconds):
    command = [sys.executable, "-X", "faulthandler", os.path.abspath(__file__), "--child", *arguments]
    try:
        ended = subprocess.run(command, timeout=seconds, capture_output=True, text=True)
        said, code = ended.stdout, ended.returncode
        error = ended.stderr.strip().splitlines()
    except subprocess.TimeoutExpired as late:
        said, code, error = (late.stdout or b"").decode(), "no end", []
    print(said, end="")
    if code != 0:
        print(f"!! {' '.join(arguments)}: exit {code} {error[:1]} {error[-1:]}")
    sys.stdout.flush()


SECTIONS = ("matrix", "captured", "cover", "locks", "waits", "race", "dead", "price", "numbers")


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--child"]:
        globals()[f"section_{arguments[1]}"](*arguments[2:])
        sys.stdout.flush()
        # Threads that still wait for the driver are left behind.
        os._exit(0)
    version = c_int()
    cuda.cuDriverGetVersion(byref(version))
    print(f"driver {version.value}")
    for section in arguments or SECTIONS:
        print(f"==== {section}")
        sys.stdout.flush()
        if section in ("race", "dead"):
            globals()[f"section_{section}"]()  # each of their cases is a process
        else:
            child([section], 240)


if __name__ == "__main__":
    main()
