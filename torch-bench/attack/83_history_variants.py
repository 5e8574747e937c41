"""Every variant of the memory history keeps what torch documents: contexts, small rings, cleared and skipped entries,
notes, annotations, out-of-memory entries, and what the snapshot says of live blocks."""
from common import *

g = start(limit=1 * GIB)
record = torch.cuda.memory._record_memory_history
problems = []


def says(ok, text):
    if not ok:
        problems.append(text)


def asked_here(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def block_of(snapshot, x):
    for s in snapshot["segments"]:
        for b in s["blocks"]:
            if b["address"] == x.data_ptr():
                return b
    return None


def names(entry):
    return {f["name"] for f in entry.get("frames") or []}


def trace():
    return torch.cuda.memory._snapshot()["device_traces"][0]


# The stacks that each context keeps: of live blocks, of requests, of frees.
for context, (block, alloc, free) in {
    None: (False, False, False),
    "state": (True, False, None),
    "alloc": (True, True, None),  # whether frees have stacks is left open there
    "all": (True, True, True),
}.items():
    record(enabled=None)
    record("all", context=context, stacks="python", max_entries=10000, clear_history=True)
    kept, gone = asked_here(3 * MIB), asked_here(70_000)
    at = gone.data_ptr()
    del gone
    s = torch.cuda.memory._snapshot()
    entries = s["device_traces"][0]
    found = block_of(s, kept)
    says(found is not None and found["state"] == "active_allocated", f"{context}: the live block is not shown")
    says(("asked_here" in names(found or {})) == block, f"{context}: stack of the live block {names(found or {})}")
    allocs = [e for e in entries if e["action"] == "alloc" and e["addr"] == kept.data_ptr()]
    says(len(allocs) == 1 and ("asked_here" in names(allocs[0])) == alloc, f"{context}: entry of the request")
    says(all(e["size"] >= 3 * MIB for e in allocs), f"{context}: size of the request")
    frees = [e for e in entries if e["action"] == "free_requested" and e["addr"] == at]
    says(len(frees) == 1, f"{context}: {len(frees)} frees")
    says(free is None or all(bool(names(e)) == free for e in frees), f"{context}: stacks of frees")
    says(any(e["action"] == "free_completed" and e["addr"] == at for e in entries), f"{context}: the free is not completed")
    del kept
# "state" keeps stacks of what lives, and next to no history.
record(enabled=None)
record("state", context="state", stacks="python", clear_history=True)
kept = [asked_here(MIB) for _ in range(9)]
s = torch.cuda.memory._snapshot()
says(all("asked_here" in names(block_of(s, x) or {}) for x in kept), "state: no stack")
del s
says(len([e for e in trace() if e["action"] == "alloc"]) < 9, "state: a whole history")
# C++ frames are there if they are asked for.
record(enabled=None)
record("all", stacks="all", clear_history=True)
kept = asked_here(MIB)
frames = (block_of(torch.cuda.memory._snapshot(), kept) or {}).get("frames") or []
says(any(f["name"] == "asked_here" for f in frames), "stacks=all: the Python frame is missing")
says(len(frames) > sum(f["filename"].endswith(".py") for f in frames), "stacks=all: no C++ frame")
# A small ring has the newest entries; a longer one begins with them.
record(enabled=None)
record("all", context=None, stacks="python", max_entries=7, clear_history=True)
last = [asked_here(1000 + k).data_ptr() for k in range(40)]
entries = [e for e in trace() if e["action"] in ("alloc", "free_requested", "free_completed")]
says(0 < len(entries) <= 7, f"a ring of 7 has {len(entries)}")
says(entries and entries[-1]["addr"] == last[-1], "a ring's last entry is not the newest")
# Cleared, and skipped.
record("all", context=None, stacks="python", max_entries=1000, clear_history=True)
says(not [e for e in trace() if e["action"] == "alloc"], "cleared, and something is there")
record("all", context=None, stacks="python", max_entries=1000, clear_history=True, skip_actions=["free_requested", "alloc"])
x = asked_here(5000)
del x
actions = {e["action"] for e in trace()}
says("free_completed" in actions and not actions & {"alloc", "free_requested"}, f"skipped, and there is {actions}")
try:
    record("all", skip_actions=["no such thing"])
    says(False, "an unknown action is taken")
except (RuntimeError, ValueError):
    pass
# Notes of the program's own, and annotations of record_function.
record(enabled=None)
record("all", context=None, stacks="python", max_entries=1000, clear_history=True, global_record_annotations=True)
torch.cuda.memory._set_memory_metadata("a note")
says(torch.cuda.memory._get_memory_metadata() == "a note", "the note is not kept")
x = asked_here(12345)
torch.cuda.memory._set_memory_metadata("")
y = asked_here(12346)
with torch.profiler.record_function("my part"):
    z = asked_here(12347)
s = torch.cuda.memory._snapshot()
noted = {e["addr"]: e.get("user_metadata") for e in s["device_traces"][0] if e["action"] == "alloc"}
says(noted.get(x.data_ptr()) == "a note" and not noted.get(y.data_ptr()), "notes are not where they were made")
marks = [(a["name"], a["stage"]) for a in s.get("external_annotations", []) if a["name"] == "my part"]
says([stage for _, stage in marks] == ["START", "END"], f"annotations {marks}")
# A request that fails.
before = torch.cuda.memory_stats()["num_ooms"]
try:
    asked_here(2 * GIB)
except torch.OutOfMemoryError:
    pass
failed = [e for e in trace() if e["action"] == "oom"]
says(len(failed) == 1 and failed[0]["size"] >= 2 * GIB and "device_free" in failed[0], f"failures {failed[-1:]}")
says(torch.cuda.memory_stats()["num_ooms"] == before + 1, "the failure is not counted once")
# Off, nothing is added; what was there stays to be read.
many = len(trace())
record(enabled=None)
w = asked_here(999)
says(len([e for e in trace() if e["action"] == "alloc" and e["addr"] == w.data_ptr() and e["size"] == 1024]) <= 1, "off")
says(len(trace()) <= many + 1, "entries are added after the end")
# Segments are of the streams that asked, and have the documented fields.
side = torch.cuda.Stream()
torch.cuda.empty_cache()
with torch.cuda.stream(side):
    apart = asked_here(3 * MIB)
for seg in torch.cuda.memory_snapshot():
    fields = {"device", "address", "total_size", "allocated_size", "active_size", "stream", "segment_type", "blocks"}
    says(fields <= set(seg), f"a segment lacks {fields - set(seg)}")
    if any(b["address"] == apart.data_ptr() for b in seg["blocks"]):
        says(seg["stream"] == side.cuda_stream and seg["segment_type"] == "large", "the segment is of another stream")
# The documented statistics: all of them, each with what it adds up to.
stats = torch.cuda.memory_stats()
kinds = ("allocation", "segment", "active", "inactive_split")
for name in [*kinds, *(f"{kind}_bytes" for kind in ("allocated", "reserved", "active", "inactive_split", "requested"))]:
    for part in ("all", "large_pool", "small_pool"):
        found = [stats.get(f"{name}.{part}.{what}") for what in ("current", "peak", "allocated", "freed")]
        if None in found:
            problems.append(f"{name}.{part} is missing")
            continue
        current, peak, allocated, freed = found
        if not 0 <= current <= peak or current != allocated - freed:
            problems.append(f"{name}.{part}: {current} now, {peak} at most, {allocated} came, {freed} went")
    total = sum(stats.get(f"{name}.{part}.current", 0) for part in ("large_pool", "small_pool"))
    says(total == stats.get(f"{name}.all.current"), f"{name}: the two pools are not all")
for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size"):
    says(isinstance(stats.get(name), int), f"{name} is missing")
for name in ("oversize_allocations", "oversize_segments"):
    says(all(stats.get(f"{name}.{what}") == 0 for what in ("current", "peak", "allocated", "freed")), f"{name} is not 0")
nested = torch.cuda.memory_stats_as_nested_dict()
says(nested["allocated_bytes"]["all"]["current"] == torch.cuda.memory_allocated(), "the nested statistics differ")
says("Allocated memory" in torch.cuda.memory_summary() and torch.cuda.memory_summary(abbreviated=True), "no summary")
torch.cuda.reset_accumulated_memory_stats()
torch.cuda.reset_peak_memory_stats()
stats = torch.cuda.memory_stats()
says(stats["allocation.all.allocated"] == 0 == stats["allocation.all.freed"] == stats["num_ooms"], "totals are not reset")
says(stats["allocated_bytes.all.peak"] == stats["allocated_bytes.all.current"] == torch.cuda.max_memory_allocated(), "peaks")
del apart
says(torch.cuda.memory_stats()["allocation.all.freed"] == 1, "a free after the reset is not counted")
problems += adds_up()
done(not problems, "; ".join(problems[:4]) or "all variants as documented")
