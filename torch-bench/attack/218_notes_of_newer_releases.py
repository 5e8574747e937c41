"""Facts that torch 2.13 and newer tell about memory: notes on live allocations, the stack that allocated a pointer,
histories of pinned memory beside those of the card or alone, and the bytes of each pool, before and after it went and
after resets. Older releases have none of it."""
import gc

from common import *

start()
memory = torch.cuda.memory
if not hasattr(memory, "_annotate_tensor") or not hasattr(memory, "_allocation_traceback"):
    skip("this torch is older")
problems = []


def expect(what, seen, wanted):
    if seen != wanted:
        problems.append(f"{what}: {seen}, not {wanted}")


def refusal(function, *args):
    try:
        function(*args)
    except RuntimeError as error:
        return "no live allocation" in str(error)


def here(size):
    return ints(size)


old = here(3 * MIB)
expect("without a history", memory._annotate_tensor(old, "nothing"), None)
memory._record_memory_history(stacks="python")
new = here(5 * MIB)
view = new[1000:]
for x, note in ((old, "old"), (new, "new"), (view, "view")):
    memory._annotate_tensor(x, note)
base = new.untyped_storage().data_ptr()
for what, pointer in (("null", 0), ("unknown", 12345), ("inside", base + 512)):
    expect(what, refusal(torch._C._cuda_annotateMemory, pointer, "x"), True)
expect("no memory", refusal(memory._annotate_tensor, torch.empty(0, device="cuda"), "x"), True)
noted = [e for e in memory._snapshot()["device_traces"][0] if e["action"] == "annotate"]
expect("notes", [(e["user_metadata"], e["addr"], e["size"]) for e in noted], [("old", old.data_ptr(), 3 * MIB), ("new", base, 5 * MIB), ("view", base, 5 * MIB)])
frames = memory._allocation_traceback(base) or []
expect("where it was allocated", "here" in {frame["name"] for frame in frames}, True)
expect("where nothing is known", [memory._allocation_traceback(p) for p in (old.data_ptr(), 0, 12345, base + 512)], [None] * 4)
memory._record_memory_history(None)
expect("after the history", memory._allocation_traceback(base) is not None, True)
del new, view

# Pinned memory: beside the card's, and alone.
memory._record_memory_history(record_pinned_host_memory=True)
pinned, x = torch.empty(MIB, pin_memory=True), ints(MIB)
shown = memory._snapshot()
expect("both", (any(e["action"] == "alloc" for e in shown["host_traces"]), any(e["action"] == "alloc" for e in shown["device_traces"][0])), (True, True))
expect("segments of the host", any(s["address"] == pinned.data_ptr() for s in shown["host_segments"]), True)
memory._record_memory_history(None)
memory._record_memory_history(record_pinned_host_memory=True, record_cuda=False)
y, more = ints(7 * MIB), torch.empty(2 * MIB, pin_memory=True)
shown = memory._snapshot()
expect("the host's alone", ([len(t) for t in shown["device_traces"]], any(e["size"] >= 8 * MIB for e in shown["host_traces"])), ([0], True))
memory._record_memory_history(None)
del pinned, more, x, y

# The bytes that each pool holds.
pools = lambda: {k: v["all"] for k, v in torch.cuda.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"].items()}
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = ints(30 * MIB)
held = sum(s["total_size"] for s in pool.snapshot())
expect("a pool", pools().get(pool.id), {"current": held, "peak": held, "allocated": held, "freed": 0})
name = pool.id
del x, pool
gc.collect()
torch.cuda.empty_cache()
expect("a pool that went", pools().get(name), {"current": 0, "peak": held, "allocated": held, "freed": held})
torch.cuda.reset_peak_memory_stats()
expect("after peaks", pools().get(name), {"current": 0, "peak": 0, "allocated": held, "freed": held})
torch.cuda.reset_accumulated_memory_stats()
expect("after totals", pools().get(name), {"current": 0, "peak": 0, "allocated": 0, "freed": 0})
done(not problems, f"{len(problems)} problems: {problems[:3]}")
