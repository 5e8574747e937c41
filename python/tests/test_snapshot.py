"""Snapshots and the history through torch's own table: the same as torch's own allocator shows for the same program,
and figures that add up."""

import json
import os
import subprocess
import sys

import pytest

START = """
import json, sys, torch
if "gapless" in sys.argv:
    import gapless
    gapless.enable()
MIB = 1 << 20
def of(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
"""

# Every sum that a snapshot must keep.
CHECK = """
def check(pools=False):
    segments, stats = torch.cuda.memory_snapshot(), torch.cuda.memory_stats()
    assert sum(s["total_size"] for s in segments) == stats["reserved_bytes.all.current"]
    assert sum(s["allocated_size"] for s in segments) == stats["allocated_bytes.all.current"]
    assert sum(s["active_size"] for s in segments) == stats["active_bytes.all.current"]
    assert sum(s["requested_size"] for s in segments) == stats["requested_bytes.all.current"]
    end = 0
    for s in segments:
        assert s["address"] >= end, "segments overlap or are out of order"
        at = s["address"]
        for b in s["blocks"]:
            assert b["address"] == at
            at += b["size"]
        end = at
        assert at == s["address"] + s["total_size"]
        of = lambda state: sum(b["size"] for b in s["blocks"] if b["state"] == state)
        assert of("active_allocated") == s["allocated_size"] and of("active_pending_free") == s["active_size"] - s["allocated_size"]
    return segments
"""


def shown(bench, program, *words, **environment):
    done = bench.start([sys.executable, "-c", START + program, *words], **environment)
    assert done.code == 0 and done.err == "", done.out + done.err
    return json.loads(done.out)


def both(bench, program, **environment):
    return shown(bench, program, **environment), shown(bench, program, "gapless", **environment)


def test_a_snapshot_has_the_shape_of_torchs_own(real):
    program = """
torch.cuda.memory._record_memory_history()
kept = [of(1000), of(5 * MIB)]
del kept[0]
try:
    of(1 << 45)
except torch.OutOfMemoryError:
    pass
def shape(item):
    if isinstance(item, dict):
        return {key: shape(value) for key, value in sorted(item.items())}
    return [shape(item[0])] if isinstance(item, list) and item else type(item).__name__
snapshot = torch.cuda.memory._snapshot()
traces = sorted({json.dumps([t["action"], shape(t)]) for t in snapshot["device_traces"][0] if "segment" not in t["action"]})
allocated = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
print(json.dumps([shape(snapshot["allocator_settings"]), traces, shape(allocated), sorted(snapshot["segments"][0]), len(snapshot["device_traces"])]))
"""
    native, ours = both(real, program)
    assert ours == native


def test_figures_add_up_with_windows_pools_and_pending_frees(real):
    real.passes(
        START
        + CHECK
        + """
import ctypes, gapless, random
gapless.enable()
card = ctypes.CDLL("libcuda.so.1")
side = torch.cuda.Stream()
pool = torch.cuda.MemPool()
random.seed(7)
kept = []
for step in range(400):
    card.card_hold(step % 40 < 20)
    if len(kept) < 25 or random.random() < 0.4:
        size = random.choice([random.randrange(1, MIB), random.randrange(MIB, 30 * MIB)])
        if step % 50 == 49:
            with torch.cuda.use_mem_pool(pool):
                kept.append(of(size))
        else:
            kept.append(of(size))
    else:
        x = kept.pop(random.randrange(len(kept)))
        if step % 5 == 0:
            x.record_stream(side)
        del x
    if step % 20 == 0:
        check()
segments = check()
assert gapless.stats()["gapless.windows_made"] > 0, "no windows were seen"
assert {tuple(s["segment_pool_id"]) for s in segments} == {(0, 0), pool.id}
assert all(tuple(s["segment_pool_id"]) == pool.id for s in pool.snapshot())
addresses = {b["address"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}
assert addresses == {x.data_ptr() for x in kept}
card.card_hold(0)
""",
        STANDIN_CAPACITY=str(6 << 30),
    )


def test_blocks_that_wait_for_another_stream_are_shown_so(real):
    native, ours = both(
        real,
        """
import ctypes
card = ctypes.CDLL("libcuda.so.1")
side = torch.cuda.Stream()
torch.cuda.memory._record_memory_history()
card.card_hold(1)
x = of(4 * MIB)
x.record_stream(side)
del x
states = sorted(b["state"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["size"] == 4 * MIB)
y = of(100)
card.card_hold(0)
z = of(200)
actions = [t["action"] for t in torch.cuda.memory._snapshot()["device_traces"][0] if not t["action"].startswith(("segment", "snapshot"))]
print(json.dumps([states, actions]))
""",
    )
    assert native == ours and native[0] == ["active_pending_free"] and native[1].index("free_completed") == 3


@pytest.mark.parametrize("context", ["None", '"state"', '"alloc"', '"all"'])
def test_the_history_is_that_of_torchs_own_allocator(real, context):
    native, ours = both(
        real,
        f"""
def early():
    return of(3000)
def late():
    return of(6 * MIB)
def let_go(kept):
    kept.pop()
torch.cuda.memory._record_memory_history(context={context}, stacks="python")
kept = [early()]
kept.append(late())
let_go(kept)
try:
    of(1 << 45)
except torch.OutOfMemoryError:
    pass
snapshot = torch.cuda.memory._snapshot()
names = lambda item: [f["name"] for f in item.get("frames", [])]
history = [(t["action"], t["size"], t["stream"], t["compile_context"], names(t)) for t in snapshot["device_traces"][0] if "segment" not in t["action"]]
live = [names(b) for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
print(json.dumps([history, live]))
""",
    )
    assert ours == native
    # The entries by name: two empty histories must not pass.
    assert [entry[0] for entry in ours[0]] == ["alloc", "alloc", "free_requested", "free_completed", "oom"]
    assert ("early" in ours[1][0]) == (context != "None")
    assert ("late" in ours[0][1][4]) == (context in ('"alloc"', '"all"'))
    assert ("let_go" in ours[0][2][4]) == (context == '"all"')


def test_a_history_is_bounded_ended_and_leaves_kinds_out(real):
    native, ours = both(
        real,
        """
memory = torch.cuda.memory
kinds = lambda: [t["action"] for t in memory._snapshot()["device_traces"][0]]
memory._record_memory_history(max_entries=5)
for size in range(1, 20):
    of(size)
found = [kinds()]
memory._record_memory_history(None)
found.append(kinds())
x = of(10)
found.append(kinds())
memory._record_memory_history(clear_history=True, skip_actions=["free_requested", "snapshot"])
y = of(20)
del y
found.append(kinds())
found.append(kinds())
try:
    memory._record_memory_history(skip_actions=["dance"])
except Exception as error:
    found.append(type(error).__name__)
torch._C._cuda_record_memory_history
print(json.dumps(found))
""",
    )
    assert ours == native and len(ours[0]) == 5 and ours[3] == ["alloc", "free_completed"]


def test_annotations_and_metadata(real):
    native, ours = both(
        real,
        """
torch.cuda.memory._record_memory_history(global_record_annotations=True)
long = "a name that does not fit into a short string, for sure"
with torch.profiler.record_function(long):
    with torch.profiler.record_function("short"):
        x = of(100)
torch._C._cuda_setMemoryMetadata("step 1 of a run that has a long description")
y = of(100)
snapshot = torch.cuda.memory._snapshot()
marks = [(a["name"], a["stage"], a["device"]) for a in snapshot["external_annotations"]]
said = [t["user_metadata"] for t in snapshot["device_traces"][0] if t["action"] == "alloc"]
print(json.dumps([marks, said, torch._C._cuda_getMemoryMetadata()]))
""",
    )
    assert ours == native and len(ours[0]) == 4 and ours[1][1].startswith("step 1")


def test_observers_are_told_of_failed_requests(real):
    native, ours = both(
        real,
        """
seen = []
torch._C._cuda_attach_out_of_memory_observer(lambda device, size, total, free: seen.append([device, size, total]))
for _ in range(2):
    try:
        of(1 << 45)
    except torch.OutOfMemoryError:
        pass
assert torch.cuda.memory_allocated() == 0
print(json.dumps(seen))
""",
    )
    assert ours == native and len(ours) == 2


def test_a_dump_is_read_by_torchs_viewer_and_by_report(real, tmp_path):
    program = os.environ.get("STANDIN_GAPLESS")
    path = tmp_path / "x.pickle"
    real.passes(
        START
        + CHECK
        + f"""
import gapless, pickle, random
gapless.enable()
torch.cuda.memory._record_memory_history()
random.seed(3)
kept = []
for step in range(300):
    if len(kept) < 12 or random.random() < 0.5:
        kept.append(of(random.randrange(1, 24 * MIB)))
    else:
        kept.pop(random.randrange(len(kept)))
check()
assert gapless.stats()["gapless.windows_made"] > 0
gapless.snapshot({str(path)!r})
from torch.cuda import _memory_viz
data = pickle.load(open({str(path)!r}, "rb"))
for show in (_memory_viz.segsum, _memory_viz.trace):
    assert show(data), show
for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
    assert "html" in plot(data), plot
# The picture after the history: what was mapped and not unmapped is what the segments are.
mapped = sum((1 if t["action"] == "segment_map" else -1) * t["size"] for t in data["device_traces"][0] if "segment" in t["action"])
assert mapped == sum(s["total_size"] for s in data["segments"])
""",
        STANDIN_CAPACITY=str(6 << 30),
    )
    if program:
        done = subprocess.run([program, "report", str(path)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "allocated" in done.stdout, done.stdout + done.stderr
