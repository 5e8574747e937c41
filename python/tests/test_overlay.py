"""torch's own tools on the real library: the trial before they are answered natively, and the functions that torch 2.13
and newer call. Programs print "old" if this torch does not have the function that they test."""

import sys

import pytest

from test_snapshot import both

TRIAL = """
import gapless, os, torch
from gapless import _selftest, _session
{patch}
gapless.enable()
assert not torch.cuda.is_initialized(), "the trial started CUDA"
try:
    os.waitpid(-1, os.WNOHANG)
    raise SystemExit("a child is left")
except ChildProcessError:
    pass
x = torch.empty(1 << 20, device="cuda")
assert torch.cuda.memory_allocated() == 4 << 20
print(_session._overlay)
"""


def tried(bench, patch=""):
    done = bench.passes(TRIAL.format(patch=patch))
    return done.out.strip() == "True", done.err


def test_a_torch_that_is_known_is_tried_and_answered_natively(real):
    patch = """
found = _selftest._try_places
def counted(torch, library, build):
    names = [name for name, _ in _selftest._calls(torch) if library.optional("gapless_overlay_word", *build, name.encode()) >= 0]
    assert len(names) >= 14 and {"emptyCache", "getDeviceStats", "snapshot", "name"} <= set(names), names
    return found(torch, library, build)
_selftest._try_places = counted
"""
    assert tried(real, patch) == (True, "")


def test_a_program_that_ignores_its_children_is_answered_natively_too(real):
    assert tried(real, "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)") == (True, "")


def test_a_torch_that_does_not_fit_stays_on_the_plain_hooks(real):
    for patch, reason in (
        (
            'calls = _selftest._calls; _selftest._calls = lambda torch: [("snapshot", call) for name, call in calls(torch) if name == "name"]',
            "torch calls another place of its table than 27 for snapshot (gapless probe ",
        ),
        ('_selftest._calls = lambda torch: [("snapshot", lambda: None)]', "for snapshot (nothing was thrown)"),
        (
            "known = _selftest.known_stats(); known['num_ooms'] += 1; _selftest.known_stats = lambda: known",
            "torch reads statistics in another way: num_ooms is 1109 instead of 1110",
        ),
        (
            "known = _selftest.known_snapshot(); known['segments'][0]['stream'] = 1; _selftest.known_snapshot = lambda: known",
            "torch reads a snapshot in another way: segments.0.stream is 5006 instead of 1",
        ),
        ("_selftest._calls = lambda torch: os.kill(os.getpid(), 11)", "crashed (SIGSEGV)"),
        ("_selftest._calls = lambda torch: os._exit(0)", "ended early"),
        ("import time; _selftest._PATIENCE = 0.5; _selftest._calls = lambda torch: time.sleep(600)", "did not end"),
        ("_selftest._calls = lambda torch: 1 // 0", "failed: ZeroDivisionError"),
        ("def refused(): raise OSError(11, 'Try again later')\nos.fork = refused", "no process can be started (Try again later)"),
    ):
        native, err = tried(real, patch)
        assert not native, reason
        assert err.count("so these tools are off: torch.cuda.memory_snapshot") == 1 and reason in err, (reason, err)
        assert "To have them, update gapless" in err


def test_what_a_private_pool_holds_is_counted_as_torch_counts_it(real):
    program = """
import gc
torch.cuda.init()
keep = of(3 * MIB)
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = of(30 * MIB)
name = "reserved_bytes_by_private_pools"
found = lambda: {key: value for key, value in torch.cuda.memory_stats().items() if key.startswith(name)}
before = found()
if not before:
    print(json.dumps("old"))
    raise SystemExit
moves = [sorted(before), before[f"{name}.0_1.large_pool.current"] >= 30 * MIB]
moves.append(before[f"{name}.0_1.all.allocated"] - before[f"{name}.0_1.all.current"])
torch.cuda.reset_accumulated_memory_stats()
moves.append(found()[f"{name}.0_1.all.allocated"])
del inside, pool
gc.collect()
torch.cuda.empty_cache()
torch.cuda.reset_peak_memory_stats()
after = found()
moves += [after[f"{name}.0_1.all.current"], after[f"{name}.0_1.all.peak"], after[f"{name}.0_1.all.freed"] > 0]
print(json.dumps(moves))
"""
    native, ours = both(real, program)
    assert ours == native, (native, ours)


def test_notes_about_live_memory_are_in_the_history(real):
    program = """
if not hasattr(torch.cuda.memory, "_annotate_tensor"):
    print(json.dumps("old"))
    raise SystemExit
torch.cuda.memory._record_memory_history()
x = of(5 * MIB)
torch.cuda.memory._annotate_tensor(x[100:], "a note")
found = [torch.cuda.memory._memory_metadata_supported()]
for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
    if entry["action"] == "annotate":
        found.append([entry["addr"] == x.data_ptr(), entry["size"], entry["user_metadata"], entry["pool_id"], len(entry["frames"]) > 0])
try:
    torch._C._cuda_annotateMemory(x.data_ptr() + 512, "nothing begins there")
except RuntimeError:
    found.append("refused")
torch.cuda.memory._record_memory_history(skip_actions=["annotate"])
torch.cuda.memory._annotate_tensor(x, "left out")
found.append(sum(e["action"] == "annotate" for e in torch.cuda.memory._snapshot()["device_traces"][0]))
print(json.dumps(found))
"""
    native, ours = both(real, program)
    assert ours == native, (native, ours)


def test_memory_at_a_chosen_address(real):
    program = """
if not hasattr(torch.UntypedStorage, "_resize_with_addr_"):
    print(json.dumps("old"))
    raise SystemExit
torch.cuda.memory._record_memory_history()
found = []
for size in (2000, 4 * MIB):
    keep = of(size)
    storage = of(size).untyped_storage()
    other = of(size).untyped_storage()
    address = storage.data_ptr()
    storage.resize_(0)
    storage._resize_with_addr_(size, address)
    found.append(storage.data_ptr() == address)
    other.resize_(0)
    for wrong in (address, address + 1, 1 << 20):
        try:
            other._resize_with_addr_(size, wrong)
        except RuntimeError:
            found.append("refused")
    found.append(torch.cuda.memory_allocated())
marks = [t for t in torch.cuda.memory._snapshot()["device_traces"][0] if t["action"] == "alloc"]
found.append([t.get("internal_metadata", t["user_metadata"]) for t in marks if t["addr"] == address][-1:])
print(json.dumps(found))
"""
    native, ours = both(real, program)
    assert ours == native, (native, ours)


def test_a_pool_that_a_graph_used_stays_until_the_graph_goes(real):
    program = """
torch.cuda.init()
pool = torch.cuda.MemPool()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    with torch.cuda.use_mem_pool(pool):
        inside = of(30 * MIB)
found = [pool.use_count()]
graph.replay()
with torch.cuda.use_mem_pool(pool):
    found.append(pool.use_count())
graph.reset()
found.append(pool.use_count())
print(json.dumps(found))
"""
    native, ours = both(real, program)
    assert ours == native, (native, ours)


def test_nccl_leaves_the_heaps_out_and_other_settings_stay(real):
    program = """
import gapless, torch
get = getattr(torch._C, "_accelerator_getAllocatorSettings", lambda: None)
before = get()
gapless.enable()
after = get()
gapless.enable()
assert get() == after
if hasattr(torch._C, "_cuda_memoryMetadataSupported"):
    assert before == "max_split_size_mb:64,expandable_segments:False", before
    assert after == before + ",expandable_segments:True", after
    # What the program sets later does not undo it.
    for later in ("max_split_size_mb:32", "expandable_segments:False", "max_split_size_mb:24, expandable_segments:True"):
        torch._C._accelerator_setAllocatorSettings(later)
        assert get().startswith(later) and get().endswith("expandable_segments:True"), get()
    try:
        torch._C._accelerator_setAllocatorSettings("nonsense:1")
        raise SystemExit("a setting that torch does not know is taken")
    except ValueError:
        pass
else:
    assert after == before
"""
    real.passes(program, PYTORCH_ALLOC_CONF="max_split_size_mb:64,expandable_segments:False")


@pytest.mark.parametrize("backend", ("backend:cudaMallocAsync", "backend:native", "max_split_size_mb:64, backend : native,pinned_num_register_threads:4"))
def test_settings_for_another_backend_of_torch_change_nothing(real, backend):
    """The allocator of that backend is in the place of torch's usual one, and cannot be asked for its settings."""
    program = """
import gapless, torch
assert gapless.enable(), gapless.disable_reason()
x = torch.empty(1 << 20, device="cuda")
shown = torch.cuda.memory._snapshot()
assert sum(segment["allocated_size"] for segment in shown["segments"]) == 4 << 20
"""
    real.passes(program, PYTORCH_CUDA_ALLOC_CONF=backend)


BACKENDS = """
import json, sys, torch
if "gapless" in sys.argv:
    import gapless
    gapless.enable()
names = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")
setters = [getattr(torch._C, name) for name in names if hasattr(torch._C, name)] + [torch.cuda.memory._set_allocator_settings]
texts = ["backend:native", "backend:native,max_split_size_mb:100", "max_split_size_mb:200,backend:native"]
texts += [" backend : native , max_split_size_mb:64", "max_split_size_mb:200,backend:native,garbage_collection_threshold:0.5"]
texts += ["backend:nothing", "backend:natively", "nonsense:1", "backend:native,nonsense:1", "max_split_size_mb:90", "", None]
if not hasattr(torch._C, "_cuda_memoryMetadataSupported"):
    texts.append("backend:cudaMallocAsync")
found = []
def ask():
    for set_all in setters:
        for text in texts:
            try:
                set_all(text)
                found.append([text, "taken"])
            except Exception as error:
                found.append([text, type(error).__name__])
ask()
torch.empty(1000, device="cuda")
ask()
print(json.dumps(found))
"""


def test_a_program_may_name_the_backend_that_torch_has(real):
    native, ours = (real.start([sys.executable, "-c", BACKENDS, who]) for who in ("native", "gapless"))
    assert native.code == ours.code == 0, native.err + ours.err
    assert ours.out == native.out and '["backend:native", "taken"]' in ours.out, (native.out, ours.out)
