"""Memory pools and the states of graphs' pools through torch's own table."""

import sys

import pytest

from test_snapshot import both

MIB = 1 << 20


def test_a_pool_is_used_counted_shown_and_given_back(real):
    native, ours = both(
        real,
        """
found = []
pool, other = torch.cuda.MemPool(), torch.cuda.MemPool(use_on_oom=True)
found.append([pool.id != other.id, pool.use_count(), len(pool.snapshot())])
with torch.cuda.use_mem_pool(pool):
    found.append(pool.use_count())
    x = of(3 * MIB)
    with torch.cuda.use_mem_pool(other):
        y = of(500)
    z = of(1000)
outside = of(1000)
live = lambda pool: sorted(b["size"] for s in pool.snapshot() for b in s["blocks"] if b["state"] == "active_allocated")
found.append([pool.use_count(), live(pool), live(other)])
torch.cuda.empty_cache()
found.append([sum(s["total_size"] for s in pool.snapshot()) > 0, torch.cuda.memory_allocated()])
del x, z
torch.cuda.empty_cache()
found.append(live(pool))
before = torch.cuda.memory_reserved()
del pool
found.append(torch.cuda.memory_reserved() < before)
# A tensor that outlives its pool keeps its memory, until it goes.
del other
y.data_ptr()
found.append(torch.cuda.memory_allocated())
del y, outside
torch.cuda.empty_cache()
found.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
print(json.dumps(found))
""",
    )
    assert ours == native and ours[-1] == [0, 0] and ours[2][1] == [1024, 3 * MIB]


def test_pools_one_after_the_other_do_not_use_addresses_up(real):
    real.passes(
        """
        import gapless, torch
        gapless.enable()
        for _ in range(300):
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                x = torch.empty(1 << 20, device="cuda")
            del x, pool
        assert torch.cuda.memory_reserved() == 0
        whole = torch.cuda.MemPool(no_split=True)
        with torch.cuda.use_mem_pool(whole):
            x = torch.empty(1 << 20, device="cuda")
        assert len(whole.snapshot()) == 1
        """
    )


def test_graphs_that_are_gone_keep_little(real):
    """A request of a capture cannot have what the pools of other graphs keep, so these give it back by themselves."""
    real.passes(
        """
import torch, gapless
gapless.enable(limit="256MiB")
MIB, most = 1 << 20, 0
for turn in range(300):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = torch.empty(MIB // 4, dtype=torch.uint8, device="cuda")
    most = max(most, torch.cuda.memory_reserved())
    del graph, out
assert most <= 128 * MIB, most
"""
    )


def test_a_pool_may_lend_what_is_free_before_a_request_fails(real):
    program = """
pool = torch.cuda.MemPool(use_on_oom=True)
with torch.cuda.use_mem_pool(pool):
    x = of(64 * MIB)
del x
y = of(48 * MIB)
assert torch.cuda.memory_stats()["num_ooms"] == 0
del y
plain = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(plain):
    z = of(20 * MIB)
del z
try:
    w = [of(16 * MIB) for _ in range(6)]
    print(json.dumps("no error"))
except torch.OutOfMemoryError:
    print(json.dumps("error"))
"""
    native, ours = both(real, program, STANDIN_CAPACITY=str(100 * MIB))
    assert ours == native == "error"


STATES = """
torch.cuda.init()
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
pool = torch.cuda.graph_pool_handle()
with torch.cuda.graph(graph, pool=pool, stream=side):
    a = of(1000)
    b = of(3 * MIB)
C = torch._C
state = C._cuda_getCheckpointState(0, pool)
found = [C._cuda_checkPoolLiveAllocations(0, pool, {a.data_ptr(), b.data_ptr()}), C._cuda_checkPoolLiveAllocations(0, pool, {a.data_ptr()})]
second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second, pool=pool, stream=side):
    c = of(2000)
    d = of(5 * MIB)
later = C._cuda_getCheckpointState(0, pool)
addresses = {x.data_ptr() for x in (a, b, c, d)}
found.append(C._cuda_checkPoolLiveAllocations(0, pool, addresses))
found.append(torch.cuda.memory_allocated())
storages = [x.untyped_storage() for x in (a, b, c, d)]
# Restoring frees everything that is live and names it as stale. What the state holds is live again, and given to
# whoever asks for it.
again = C._construct_storage_from_data_pointer(a.data_ptr(), torch.device("cuda:0"), 1000)
C._cuda_setCheckpointPoolState(0, state, [s._cdata for s in storages], [again._cdata])
found.append(C._cuda_checkPoolLiveAllocations(0, pool, {a.data_ptr(), b.data_ptr()}))
found.append(torch.cuda.memory_allocated())
del a, b, c, d, storages
found.append(torch.cuda.memory_allocated())
del again
found.append(torch.cuda.memory_allocated())
C._cuda_setCheckpointPoolState(0, later, [], [])
found.append([C._cuda_checkPoolLiveAllocations(0, pool, addresses), torch.cuda.memory_allocated()])
for wrong in ((0, 987654), (55, 0)):
    try:
        C._cuda_getCheckpointState(0, wrong)
    except RuntimeError as error:
        found.append(str(error).splitlines()[0])
try:
    C._cuda_setCheckpointPoolState(0, state, [], [])
except RuntimeError as error:
    found.append(str(error).splitlines()[0])
del state, later
print(json.dumps(found))
"""


def test_states_of_a_pool_come_back(real):
    native, ours = both(real, STATES)
    assert ours == native and ours[0] is True and ours[1] is False and ours[8][0] is True


TREES = """
import sys
import torch._inductor.config as config
from torch._inductor import cudagraph_trees
config.triton.fast_path_cudagraph_asserts = config.triton.slow_path_cudagraph_asserts = True
model = torch.nn.Sequential(torch.nn.LayerNorm(64), torch.nn.GELU(), torch.nn.LayerNorm(64)).cuda()
restored = []
restore = torch._C._cuda_setCheckpointPoolState
def counted(*arguments):
    restored.append(1)
    return restore(*arguments)
torch._C._cuda_setCheckpointPoolState = counted
call = torch.compile(lambda x: model(x) * 2, backend="cudagraphs")
found = []
def show():
    stats = torch.cuda.memory_stats()
    found.append([stats["allocated_bytes.all.current"], stats["requested_bytes.all.current"], stats["allocation.all.current"]])
for step in range(5):
    model.zero_grad(set_to_none=True)
    x = torch.randn(8, 64, device="cuda")
    torch.compiler.cudagraph_mark_step_begin()
    y = call(x)
    y.sum().backward()
    show()
del y
model.zero_grad(set_to_none=True)
with torch.no_grad():
    for step in range(7):
        torch.compiler.cudagraph_mark_step_begin()
        a = call(torch.randn(8, 64, device="cuda"))
        b = call(a * 1)
        if step % 3 == 2:
            c = call(b * 2)
        show()
del a, b, c, x
found.append(len(restored))
torch._dynamo.reset()
cudagraph_trees.reset_cudagraph_trees()
import gc
gc.collect()
torch.cuda.empty_cache()
show()
print(json.dumps(found))
"""


def test_cudagraph_trees_of_torch_compile(real):
    native, ours = both(real, TREES)
    assert ours == native and ours[-2] >= 3, ours


TABLE = '''
import ctypes, gapless, torch
gapless.enable()
torch.cuda.init()
c10 = ctypes.CDLL([line.split()[-1] for line in open("/proc/self/maps") if line.rstrip().endswith("libc10_cuda.so")][0])
this = ctypes.c_void_p.in_dll(c10, "_ZN3c104cuda20CUDACachingAllocator9allocatorE").value
table = ctypes.cast(ctypes.cast(this, ctypes.POINTER(ctypes.c_void_p))[0], ctypes.POINTER(ctypes.c_void_p))
build = torch.__version__.encode(), torch.version.git_version.encode()
def slot(name, result, *arguments):
    """A function of torch's table, as C++ calls it."""
    word = gapless._session._library.optional("gapless_overlay_word", *build, name.encode())
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p, *arguments)(table[word - 2])
'''


def test_what_one_request_can_get_is_what_cudnn_is_told(real):
    real.passes(
        TABLE
        + """
ask = slot("cacheInfo", None, ctypes.c_int8, ctypes.POINTER(ctypes.c_size_t))
def largest(start=0):
    value = ctypes.c_size_t(start)
    ask(this, 0, ctypes.byref(value))
    return value.value
free = torch.cuda.mem_get_info()[0]
assert free - (2 << 20) < largest() <= free
x = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
assert free - (112 << 20) < largest() <= free - (100 << 20)
del x
assert largest() > free - (10 << 20)
assert largest(1 << 50) == 1 << 50, "what the caller knows already"
y = torch.empty(largest(), dtype=torch.uint8, device="cuda")
"""
    )


LISTENER = (
    TABLE
    + """
heard = []
class Entry(ctypes.Structure):
    _fields_ = [("action", ctypes.c_int), ("device", ctypes.c_int8), ("addr", ctypes.c_size_t), ("context", ctypes.c_void_p * 2),
                ("stream", ctypes.c_void_p), ("size", ctypes.c_size_t)]
MANAGER = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
INVOKER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Entry))
class Function(ctypes.Structure):
    _fields_ = [("callable", ctypes.c_void_p * 2), ("manager", MANAGER), ("invoker", INVOKER)]
manager = MANAGER(lambda to, of, operation: True)
invoker = INVOKER(lambda callable, entry: heard.append((entry.contents.action, entry.contents.size, entry.contents.addr)))
def listen():
    function = Function((ctypes.c_void_p * 2)(), manager, invoker)
    slot("attachAllocatorTraceTracker", None, ctypes.POINTER(Function))(this, ctypes.byref(function))
"""
)


def test_trackers_hear_what_happens(real):
    real.passes(
        LISTENER
        + """
x = torch.empty(1000, dtype=torch.uint8, device="cuda")
listen()
y = torch.empty(5000, dtype=torch.uint8, device="cuda")
z = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
del x
heard = [(action, size) for action, size, _ in heard]
assert heard == [(0, 5000), (5, 6 << 20), (0, 6 << 20), (1, 1000), (2, 1000)], heard
assert torch.cuda.memory._snapshot()["device_traces"] == [[]], "nobody records"
# The tracker is called to the very end, when these functions are gone.
import os
os._exit(0)
"""
    )


def test_trackers_hear_of_segments_of_private_pools_before_these_go(real):
    real.passes(
        LISTENER
        + """
import gc, os
MIB = 1 << 20
of = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
pools = [torch.cuda.MemPool() for _ in range(2)]
with torch.cuda.use_mem_pool(pools[0]):
    before = of(30 * MIB)
known = [s["address"] for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] != (0, 0)]
listen()
keep = of(40 * MIB)
with torch.cuda.use_mem_pool(pools[1]):
    later = of(50 * MIB)
came = [addr for action, size, addr in heard if action == 3]
assert len(known) == 1 and came == [later.data_ptr()], (known, came)
assert not any(action == 4 for action, _, _ in heard)
del before, later, pools
gc.collect()
torch.cuda.empty_cache()
went = [(action, addr) for action, _, addr in heard if action in (4, 6)]
for addr in known + came:
    assert went.count((4, addr)) == 1 and went.index((4, addr)) < went.index((6, addr)), went
assert len([1 for action, _ in went if action == 4]) == 2, "the default pool's segments come and go untold"
os._exit(0)
"""
    )


MAPPED = (
    LISTENER
    + """
import gc, os, threading
card = ctypes.CDLL("libcuda.so.1")
card.device_behind.restype = ctypes.c_uint64
def is_mapped(addr):
    two = (ctypes.c_uint64 * 2)()
    return card.device_behind(ctypes.c_uint64(addr), ctypes.byref(two), ctypes.byref(two, 8)) != 0
MIB = 1 << 20
of = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
"""
)


@pytest.mark.parametrize("what", ["pool", "graph"])
def test_memory_stays_until_a_tracker_that_another_thread_tells_has_heard_of_its_end(real, what):
    real.passes(
        MAPPED
        + f"""
inside, may_go, going = threading.Event(), threading.Event(), threading.Event()
class Heard(list):
    def append(self, entry):
        action, size, addr = entry
        super().append((action, addr, is_mapped(addr)))
        if action == 0 and threading.current_thread() is not threading.main_thread():
            inside.set()
            may_go.wait(60)
heard = Heard()
listen()
if {what!r} == "pool":
    held = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(held):
        x = of(80 * MIB)
else:
    held = torch.cuda.CUDAGraph()
    with torch.cuda.graph(held):
        x = of(80 * MIB)
came = [addr for action, addr, _ in heard if action == 3]
assert came, heard
del x
busy = threading.Thread(target=lambda: of(1000))
busy.start()
inside.wait(60)
# The tracker goes on a moment after this thread has begun to give the memory up: it must wait for that.
threading.Thread(target=lambda: (going.wait(60), threading.Event().wait(0.3), may_go.set())).start()
going.set()
del held
gc.collect()
torch.cuda.empty_cache()
ends = [(addr, mapped) for action, addr, mapped in heard if action == 4]
assert ends == [(addr, True) for addr in came], (came, ends)
busy.join(60)
os._exit(0)
"""
    )


def test_a_tracker_may_give_a_pool_up_itself(real):
    real.passes(
        MAPPED
        + """
pools = []
class Heard(list):
    def append(self, entry):
        action, size, addr = entry
        super().append((action, addr, is_mapped(addr)))
        if action == 0 and pools:
            pools.pop()
heard = Heard()
listen()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = of(80 * MIB)
came = [addr for action, addr, _ in heard if action == 3]
del x
pools.append(pool)
del pool
y = of(1000)
ends = [(addr, mapped) for action, addr, mapped in heard if action == 4]
assert ends == [(addr, True) for addr in came], (came, ends)
os._exit(0)
"""
    )


def test_trackers_hear_before_a_region_sleeps_and_after_it_wakes(real):
    """Trackers hear of the pools in it, but not of free memory in the region's own pool, which may go at any time."""
    real.passes(
        MAPPED
        + """
import gapless
class Heard(list):
    def append(self, entry):
        action, size, addr = entry
        if action in (3, 4):
            super().append((action, addr, size, is_mapped(addr), is_mapped(addr + size - 1)))
heard = Heard()
with gapless.region("early"):
    early = torch.cuda.CUDAGraph()
    with torch.cuda.graph(early):
        e = of(20 * MIB)
listen()
with gapless.region("w"):
    own = of(60 * MIB)
    assert heard == [], "the region's own pool"
    found = [s for s in torch.cuda.memory_snapshot() if s["address"] <= own.data_ptr() < s["address"] + s["total_size"]]
    assert [tuple(s["segment_pool_id"]) for s in found] == [(0, 0)], "who registers what a snapshot shows leaves it out"
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.MemPool()
    with torch.cuda.graph(graph):
        x = of(40 * MIB)
    with torch.cuda.use_mem_pool(pool):
        y = of(30 * MIB)
came = sorted(entry[1:3] for entry in heard)
assert sum(size for _, size in came) >= 70 * MIB and all(entry[0] == 3 and entry[3] and entry[4] for entry in heard), heard
for name, known in (("w", came), ("early", None), ("w", came)):
    heard.clear()
    gapless.sleep(name, guard=False)
    went = sorted(entry[1:3] for entry in heard)
    assert went and all(entry[0] == 4 and entry[3] and entry[4] for entry in heard), heard
    assert sum(size for _, size in went) == sum(size for _, size in known) if known else True, (went, known)
    assert not any(is_mapped(addr) for addr, _ in went)
    heard.clear()
    gapless.wake(name)
    back = sorted(entry[1:3] for entry in heard)
    assert all(entry[0] == 3 and entry[3] and entry[4] for entry in heard), heard
    assert sum(size for _, size in back) == sum(size for _, size in went), (back, went)
# A sleep that is refused: what was told to go is told to be there.
heard.clear()
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    z = of(2 * MIB)
    try:
        gapless.sleep("w", guard=False)
        raise SystemExit("it slept in a capture")
    except gapless.GaplessError:
        pass
of_w = [entry for entry in heard if any(addr <= entry[1] < addr + size for addr, size in came)]
told = sum(size if action == 3 else -size for action, _, size, *_ in of_w)
assert told == 0, of_w
heard.clear()
gapless.sleep("w", guard=False)
gapless.sleep("early", guard=False)
gapless.wake("early")
heard.clear()
gapless.switch("early", "w")
assert [entry[0] for entry in heard].count(4) and [entry[0] for entry in heard].count(3) and all(entry[3] and entry[4] for entry in heard), heard
os._exit(0)
"""
    )


def test_a_segment_of_a_private_pool_is_there_while_trackers_hear_of_its_end(real):
    # NCCL ends the registration of the memory then, so the driver must still have that memory.
    done = real.passes(
        LISTENER
        + """
import gc, os
card = ctypes.CDLL("libcuda.so.1")
card.device_behind.restype = ctypes.c_uint64
def is_mapped(addr):
    two = (ctypes.c_uint64 * 2)()
    return card.device_behind(ctypes.c_uint64(addr), ctypes.byref(two), ctypes.byref(two, 8)) != 0
class Heard(list):
    def append(self, entry):
        action, size, addr = entry
        super().append((action, addr, size, [is_mapped(addr), is_mapped(addr + size - 1)]))
heard = Heard()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    early = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
listen()
with torch.cuda.use_mem_pool(pool):
    late = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    inside = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
del early, late, inside
torch.cuda.empty_cache()
assert not any(action == 4 for action, *_ in heard), "the pools are in use"
del pool, graph
gc.collect()
torch.cuda.empty_cache()
came, went = [[entry[1:] for entry in heard if entry[0] == action] for action in (3, 4)]
assert len(came) >= 2 and len(went) >= 3, (came, went)
for addr, size, mapped in came + went:
    assert mapped == [True, True], (hex(addr), size, mapped)
assert not any(is_mapped(addr) for addr, _, _ in went), "now they are gone"
print("heard", flush=True)
os._exit(0)
"""
    )
    assert done.lines() == ["heard"]


def test_sizes_of_what_is_mapped_and_copies_within_a_card(real):
    real.passes(
        TABLE
        + """
x = torch.empty(6 << 20, dtype=torch.uint8, device="cuda")
y = torch.empty(100, device="cuda")
class Vector(ctypes.Structure):
    _fields_ = [("begin", ctypes.POINTER(ctypes.c_size_t)), ("end", ctypes.c_void_p), ("room", ctypes.c_void_p)]
sizes = Vector()
slot("getExpandableSegmentSizes", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int8)(ctypes.addressof(sizes), this, 0)
count = (sizes.end - ctypes.addressof(sizes.begin.contents)) // 24
assert sorted((sizes.begin[3 * i + 1] & 1, sizes.begin[3 * i + 2]) for i in range(count)) == [(0, 6 << 20), (1, 2 << 20)]
copy = slot("memcpyAsync", ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_bool)
assert copy(this, x.data_ptr(), 0, y.data_ptr(), 0, 100, None, True) == 0
assert copy(this, x.data_ptr(), 0, y.data_ptr(), 1, 100, None, True) == 0
assert copy(this, x.data_ptr(), 0, y.data_ptr(), 1, 100, None, False) == 0
"""
    )


UNKNOWN = "this Gapless knows the tables of torch 2.8.0 to 2.15.0, and not that of torch 2.11.1+cu130, so these"
OTHER = "that Gapless knows, so these"


def test_a_build_that_is_not_known_is_left_alone(real):
    program = """
import sys, torch
how = sys.argv[1]
if how == "commit":
    torch.version.git_version = "70d99e998b4955e0049d13a98d77ae1b14db1f46"
if how == "version":
    torch.__version__ = "2.11.1+cu130"
if how == "nothing":
    torch.version.git_version = None
import gapless
gapless.enable()
gapless.enable()
x = torch.empty(1 << 20, device="cuda")
assert torch.cuda.memory_allocated() == torch.accelerator.memory_allocated() == 4 << 20
try:
    torch.cuda.memory_snapshot()
except RuntimeError as error:
    assert "does not yet support" in str(error), error
else:
    raise SystemExit("no error")
"""
    for how in ("commit", "version", "nothing"):
        done = real.start([sys.executable, "-c", program, how])
        assert done.code == 0, done.err
        assert done.err.count(", so these tools are off: torch.cuda.memory_snapshot") == 1, done.err
        assert (UNKNOWN if how == "version" else OTHER) in done.err, done.err
    done = real.start([sys.executable, "-c", program, "asked"], GAPLESS_OVERLAY="0")
    assert done.code == 0 and done.err == "", done.err
