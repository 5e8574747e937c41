"""Captures and private pools that do not go as planned: Gapless survives those that torch's own allocator survives, and
raises the same errors."""

import json
import sys
from pathlib import Path

from test_pools import TABLE
from test_snapshot import both, shown

MIB = 1 << 20

FILTER = """
import ctypes
card = ctypes.CDLL("libcuda.so.1")
torch.cuda.init()
kept = [of(3 * MIB)]
graph = torch.cuda.CUDAGraph()
found = []
with torch.cuda.stream(torch.cuda.Stream()):
    graph.capture_begin(capture_error_mode="relaxed")
    kept.append(of(1000))
    # As on a card: which capture the default stream is in cannot be asked beside that of a blocking stream. The filter
    # throws then.
    card.card_refuse_questions(906)
    for size in (1000, 30 * MIB):
        try:
            kept.append(of(size))
            found.append("served")
        except RuntimeError as error:
            found.append(type(error).__mro__[-4].__name__)
    card.card_refuse_questions(0)
    kept.append(of(2 * MIB))
    graph.capture_end()
graph.replay()
kept.append(of(5 * MIB))
found.append(torch.cuda.memory_allocated() >> 20)
print(json.dumps(found))
"""


def test_a_filter_that_throws_is_an_error_in_python(real):
    native, ours = both(real, FILTER)
    assert ours == native and ours[0] == ours[1] != "served", (native, ours)


THROWER = (
    TABLE
    + """
cxx = ctypes.CDLL("libstdc++.so.6")
MANAGER = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
class Function(ctypes.Structure):
    _fields_ = [("callable", ctypes.c_char * 16), ("manager", MANAGER), ("invoker", ctypes.c_void_p)]
def copy(to, of, operation):
    if operation == 2:
        ctypes.memmove(to, of, 16)
    return True
manager = MANAGER(copy)
# A function object whose call is std::__throw_runtime_error of its own first bytes.
thrower = Function(b"thrown by C++", manager, ctypes.cast(cxx._ZSt21__throw_runtime_errorPKc, ctypes.c_void_p).value)
def fails(call):
    try:
        call()
    except RuntimeError as error:
        assert "thrown by C++" in str(error), error
        return True
    return False
empty = lambda size=6 << 20: torch.empty(size, dtype=torch.uint8, device="cuda")
"""
)


def test_a_tracker_that_throws_is_an_error_in_python(real):
    real.passes(
        THROWER
        + """
x = empty()
slot("attachAllocatorTraceTracker", None, ctypes.POINTER(Function))(this, ctypes.byref(thrower))
assert fails(empty) and fails(lambda: empty(1000)) and fails(torch.cuda.empty_cache)
assert torch.cuda.memory_allocated() >= 6 << 20
print("alive", flush=True)
import os
os._exit(0)
"""
    )


def test_an_observer_of_failures_that_throws_is_the_error_in_python(real):
    real.passes(
        THROWER
        + """
slot("attachOutOfMemoryObserver", None, ctypes.POINTER(Function))(this, ctypes.byref(thrower))
assert fails(lambda: empty(1 << 50))
x = empty()
"""
    )


def test_a_gatherer_of_stacks_that_throws_is_the_error_in_python(real):
    real.passes(
        THROWER
        + """
x = empty()
class Vector(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p)]
record = slot("recordHistory", None, ctypes.c_bool, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_bool, ctypes.POINTER(Vector))
# std::__throw_bad_alloc, which takes nothing.
record(this, True, ctypes.cast(cxx._ZSt17__throw_bad_allocv, ctypes.c_void_p), 10, 2, False, ctypes.byref(Vector()))
try:
    empty()
except MemoryError:
    pass
except RuntimeError as error:
    assert "bad_alloc" in str(error), error
else:
    raise SystemExit("no error")
record(this, False, None, 10, 0, True, ctypes.byref(Vector()))
y = empty()
"""
    )


FAILED = """
side = torch.cuda.Stream()
kept = [of(40 * MIB), of(40 * MIB)]
found = []
for pool in (None, torch.cuda.graph_pool_handle(), None):
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=side, pool=pool):
            y = of(3 * MIB)
            torch.cuda.synchronize()
    except RuntimeError:
        found.append("failed")
        torch.cuda.set_stream(torch.cuda.default_stream())
    y = None
    del graph
torch.cuda.synchronize()
# Nothing is held back any more: what another stream used comes free, what is free is given back.
for step in range(100):
    x = of(50 * MIB)
    x.record_stream(side)
    del x
before = torch.cuda.memory_reserved()
kept.clear()
torch.cuda.empty_cache()
found.append(before - torch.cuda.memory_reserved() >= 80 * MIB)
good = torch.cuda.CUDAGraph()
with torch.cuda.graph(good, stream=side):
    z = of(3 * MIB)
good.replay()
found.append(torch.cuda.memory_allocated() >> 20)
print(json.dumps(found))
"""


def test_a_capture_that_failed_holds_nothing_back(real):
    ours = shown(real, FAILED, "gapless", STANDIN_CAPACITY=str(400 * MIB))
    assert ours == ["failed"] * 3 + [True, 3], ours


def test_nothing_is_given_back_during_a_capture(real):
    real.passes(
        """
        import gapless, threading, torch
        gapless.enable(process_limit="3GiB")
        of = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
        x, y = of(40 << 20), of(40 << 20)
        graph, given = torch.cuda.CUDAGraph(), []
        def give_back():
            torch.cuda.empty_cache()
            given.append((gapless.trim(), torch.cuda.memory_reserved()))
        with torch.cuda.graph(graph):
            z = of(3 << 20)
            del x
            before = torch.cuda.memory_reserved()
            give_back()
            thread = threading.Thread(target=give_back)
            thread.start()
            thread.join()
        assert given == [(0, before)] * 2, (given, before)
        assert gapless.trim() >= 40 << 20
        """,
        "-Wignore",
    )


def test_a_memory_pool_is_no_capture(real):
    real.passes(
        """
        import gapless, torch
        gapless.enable()
        of = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
        x, side = of(40 << 20), torch.cuda.Stream()
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            y = of(20 << 20)
            del x
            assert gapless.trim() >= 40 << 20
            # What another stream used comes free inside: nothing is put off to the end.
            y.record_stream(side)
            at = y.data_ptr()
            del y
            y = of(20 << 20)
            assert y.data_ptr() == at
        """,
        "-Wignore",
    )


def test_a_pool_that_a_graph_shares_keeps_its_memory_when_its_object_goes(real):
    native, ours = both(
        real,
        """
import gc
side = torch.cuda.Stream()
pool = torch.cuda.MemPool()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=pool.id, stream=side):
    x = of(60 * MIB)
    y = of(1000)
    del x
before = torch.cuda.memory_reserved()
del pool
gc.collect()
found = [torch.cuda.memory_reserved() >= before]
torch.cuda.empty_cache()
found.append(torch.cuda.memory_reserved() >= 60 * MIB)
del graph, y
gc.collect()
torch.cuda.empty_cache()
found.append(torch.cuda.memory_reserved())
print(json.dumps(found))
""",
    )
    assert ours == native == [True, True, 0]


def test_a_pool_that_lends_keeps_its_pages(real):
    native, ours = both(
        real,
        """
pool = torch.cuda.MemPool(use_on_oom=True)
with torch.cuda.use_mem_pool(pool):
    x, gap, y = of(40 * MIB), of(2 * MIB), of(40 * MIB)
del x, y
held = sum(s["total_size"] for s in pool.snapshot())
found = []
try:
    # More than is free in it and on the card: its pages are not taken away for it.
    of(99 * MIB)
except torch.OutOfMemoryError:
    found.append("error")
found.append(sum(s["total_size"] for s in pool.snapshot()) == held)
found.append(of(40 * MIB).numel())
print(json.dumps(found))
""",
        STANDIN_CAPACITY=str(100 * MIB),
    )
    assert ours == native == ["error", True, 40 * MIB], (native, ours)


RAW = """
import ctypes
card = ctypes.CDLL("libcuda.so.1")
card.card_new_stream.restype = ctypes.c_uint64
begin, end = card.card_begin_capture, card.card_end_capture
begin.argtypes = end.argtypes = [ctypes.c_uint64]
torch.cuda.init()
kept = [of(1000)]
def churn(first, second):
    # Blocks of one stream, read on another and freed early: what is free goes from stream to stream.
    for size in (1000, 3 * MIB, 30 * MIB, 7 * MIB, 21 * MIB, 2 * MIB) * 6:
        with torch.cuda.stream(first):
            x = of(size)
        x.record_stream(second)
        del x
        with torch.cuda.stream(second):
            kept[0] = of(size + 512)
streams = [torch.cuda.Stream() for _ in range(3)]
churn(*streams[:2])
HANDLES
found = []
for handle in handles:
    began = begin(handle)
    churn(*streams[:2])
    found.append([began, end(handle)])
churn(*streams[:2])
print(json.dumps(found))
"""


def test_a_capture_of_a_stream_that_the_program_made_stays_whole(real):
    """No stream of a capture asks for memory meanwhile, and the program does not announce the capture."""
    for how in ("torch.cuda.ExternalStream", "torch.cuda.streams.ExternalStream", "torch.cuda.get_stream_from_external"):
        handles = f"made = card.card_new_stream(); named = {how}(made); handles = [made, made, card.card_new_stream()]"
        native, ours = both(real, RAW.replace("HANDLES", handles))
        assert ours == native == [[0, 0]] * 3, (how, native, ours)


OWN = """
named, asks, other = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
with torch.cuda.stream(asks):
    kept.append(of(1000))
    unread = torch._C._cuda_getCurrentRawStream(0)
handles = [named.cuda_stream, unread, other.cuda_stream, torch.cuda.Stream()._as_parameter_.value, torch.cuda.Stream().native_handle]
"""


def test_a_capture_of_a_stream_of_torchs_own_stays_whole(real):
    """It is made through the driver, on a stream whose handle the program has read, or that has asked for memory."""
    native, ours = both(real, RAW.replace("HANDLES", OWN))
    assert ours == native == [[0, 0]] * 5, (native, ours)
    # Also if the captured stream asks once, and others after it.
    asks = RAW.replace("began = begin(handle)", "began = begin(handle)\n    with torch.cuda.stream(asks):\n        kept.append(of(5000))")
    native, ours = both(real, asks.replace("HANDLES", OWN))
    assert ours == native == [[0, 0]] * 5, (native, ours)


def test_streams_are_read_as_before(real):
    native, ours = both(
        real,
        """
import ctypes
a, b = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
same = lambda s: torch.cuda.Stream(stream_id=s.stream_id, device_index=s.device_index, device_type=s.device_type)
found = []
for s in (a, b, torch.cuda.current_stream(), same(a)):
    t = same(s)
    found.append([s.cuda_stream == t.cuda_stream, hash(s) == hash(t), s == t, f"{s.cuda_stream:#x}" in repr(s)])
    found.append([isinstance(s._as_parameter_, ctypes.c_void_p), type(s.cuda_stream).__name__, "cuda_stream" in dir(s)])
    try:
        s.cuda_stream = 1
    except AttributeError:
        found.append("cannot be set")
found.append(len({a.cuda_stream, b.cuda_stream, torch.cuda.current_stream().cuda_stream}))
print(json.dumps(found))
""",
    )
    assert ours == native, (native, ours)


def test_a_capture_of_a_stream_that_torch_never_heard_of_stays_whole(real):
    """Also of one that waits for the default stream (0x10), on which memory is asked for meanwhile."""
    for bits in (0, 0x10):
        handles = f"handles = [card.card_new_stream() | {bits}] * 2\nstreams[0] = torch.cuda.default_stream()"
        native, ours = both(real, RAW.replace("HANDLES", handles))
        assert ours == native == [[0, 0]] * 2, (bits, native, ours)


def test_the_card_ends_captures_as_a_real_one_does(real):
    """The tests above see something: each of these calls ends a capture."""
    _, ours = both(
        real,
        """
import ctypes
card = ctypes.CDLL("libcuda.so.1")
card.card_new_stream.restype = ctypes.c_uint64
torch.cuda.init()
event, found = ctypes.c_void_p(), []
card.cuEventCreate(ctypes.byref(event), 2)
plain, waits = card.card_new_stream(), card.card_new_stream() | 0x10
def ended_by(stream, *calls):
    stream = ctypes.c_void_p(stream)
    begin, end = card.card_begin_capture, card.card_end_capture
    began = begin(stream)
    said = [call(stream) for call in calls]
    return [began, *said, end(stream)]
record, query = (lambda s: card.cuEventRecord(event, s)), (lambda s: card.cuEventQuery(event))
found.append(ended_by(plain, record))
found.append(query(None))
found.append(ended_by(plain, record, query))
found.append(ended_by(plain, lambda s: card.cuCtxSynchronize()))
found.append(ended_by(plain, lambda s: card.cuEventRecord(event, None), query))
found.append(ended_by(waits, lambda s: card.cuEventRecord(event, None)))
found.append(ended_by(waits, lambda s: card.cuModuleUnload(None)))
print(json.dumps(found))
""",
    )
    assert ours == [[0, 0, 0], 1, [0, 0, 907, 901], [0, 900, 901], [0, 0, 0, 0], [0, 906, 901], [0, 0, 0]], ours


def test_free_pages_of_a_pool_are_put_side_by_side(real):
    native, ours = both(
        real,
        """
import gc

side = torch.cuda.Stream()
pool, graphs, held = torch.cuda.graph_pool_handle(), [], []
for turn in range(3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=side):
        parts = [of(6 * MIB) for _ in range(8)]
        kept = parts[::2]
        del parts
        held.append(of((20 + turn) * MIB))
        del kept
    graphs.append(graph)
addresses = [x.data_ptr() for x in held]
torch.cuda.empty_cache()
segments = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) == tuple(pool)]
shown = sorted(b["address"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated")
found = [shown == sorted(addresses), sum(s["total_size"] for s in segments)]
for graph in graphs:
    graph.replay()
del graph, graphs, held
gc.collect()
torch.cuda.empty_cache()
found.append(torch.cuda.memory_reserved())
print(json.dumps(found))
""",
    )
    assert [native[0], native[2]] == [ours[0], ours[2]] == [True, 0], (native, ours)
    # 63 MiB stay, and 24 MiB more are live while the last graph is captured.
    assert ours[1] <= 90 * 1024 * 1024 < native[1], (native, ours)


TWICE = """
import ctypes, threading
end = ctypes.CDLL("libcuda.so.1").card_end_capture
end.argtypes = [ctypes.c_uint64]
torch.cuda.init()
kept, found = [of(1000)], []
def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
def says(call, *arguments):
    try:
        call(*arguments)
        found.append("yes")
    except RuntimeError as error:
        found.append(str(error).splitlines()[0])
def capture(stream, pool):
    graph = torch.cuda.CUDAGraph()
    # torch's own table keeps a pointer to a graph whose capture failed: it stays for good.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))
    with torch.cuda.stream(stream):
        says(graph.capture_begin, pool, "relaxed")
opens = lambda pool: says(torch._C._cuda_beginAllocateCurrentThreadToPool, 0, pool)
closes = lambda pool: says(torch._C._cuda_endAllocateToPool, 0, pool)
is_in = lambda pool, x: any(s["address"] <= x.data_ptr() < s["address"] + s["total_size"] for s in torch.cuda.memory_snapshot(pool))
def tried(pool):
    # Whoever wants the pool now is refused, until the first one ends its routing.
    opens(pool)
    found.append(is_in(pool, of(3 * MIB)))
    closes(pool)
    closes(pool)
    opens(pool)
    found.append(is_in(pool, of(3 * MIB)))
    closes(pool)
    found.append(is_in(pool, of(3 * MIB)))
def released(pool):
    says(torch._C._cuda_releasePool, 0, pool)
    kept.append(of(3 * MIB))
    closes(pool)
    closes(pool)
for comes_by in (False, True):
    for other in (False, True):
        run = in_a_thread if other else lambda work: work()
        # It begins, and is over, and torch has not said its end yet; gapless looked meanwhile, or did not.
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        run(lambda: capture(stream, pool))
        if comes_by:
            kept.append(of(3 * MIB))
        found.append(end(stream.cuda_stream))
        WORK(pool)
print(json.dumps(found))
"""


def test_a_pool_is_opened_once_whatever_became_of_the_capture_that_has_it(real):
    native, ours = both(real, TWICE.replace("WORK", "tried"))
    refused = "beginAllocateToPool: already recording to mempool_id"
    assert ours == native and ours.count(refused) == 4, (native, ours)


def test_the_end_of_a_capture_may_be_said_after_the_last_release_of_its_pool(real):
    native, ours = both(real, TWICE.replace("WORK", "released"))
    assert ours == native and ours.count("yes") == 12, (native, ours)


def test_random_routings_tell_what_they_tell_natively(real):
    program = [sys.executable, Path(__file__).parent / "programs" / "routings.py", "0", "30"]
    runs = [real.start([*program, *words], STANDIN_CAPACITY=str(400 << 30)) for words in ([], ["gapless"])]
    assert all(done.code == 0 for done in runs), runs[0].err + runs[1].err
    native, ours = (json.loads(done.out) for done in runs)
    compared = 0
    for seed, stories in enumerate(zip(native, ours)):
        for step, (wanted, found) in enumerate(zip(*stories)):
            # torch found a pool open after its last release, which is not allowed: later steps cannot be compared.
            if "INTERNAL ASSERT" in str(wanted):
                break
            assert found == wanted, (seed, step)
            compared += 1
        else:
            assert len(stories[0]) == len(stories[1]), seed
    assert compared > 2000, compared
