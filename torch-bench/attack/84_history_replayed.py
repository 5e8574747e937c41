"""A history that is replayed entry by entry ends in the snapshot's blocks and in the reserved bytes, with streams,
graphs, pools, out-of-memory errors and empty caches on the way; torch's viewers read it."""
import pickle
import tempfile

from common import *

g = start(limit=1 * GIB)
torch.cuda.synchronize()
torch.cuda.empty_cache()
# Only what comes after it is in the history.
base = {b["address"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] != "inactive"}
held = torch.cuda.memory_reserved()
torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=1 << 20)
r, streams, live, graphs = rng(84), [torch.cuda.Stream() for _ in range(3)], [], []
static = torch.ones(1 << 20, device="cuda")
pool = torch.cuda.MemPool()
problems, looks = [], 0


def replayed(snapshot):
    """The memory that is allocated, waits and is mapped after the last entry."""
    alive, waiting, mapped = set(), set(), 0
    for e in snapshot["device_traces"][0]:
        action, addr = e["action"], e.get("addr")
        if action == "alloc":
            if addr in alive or addr in waiting:
                problems.append(f"{addr:#x} is given out twice")
            alive.add(addr)
        elif action == "free_requested":
            if addr in alive:
                alive.remove(addr)
                waiting.add(addr)
            elif addr not in base:
                problems.append(f"a free of {addr:#x}, which was not allocated")
        elif action == "free_completed":
            waiting.discard(addr)
        elif action in ("segment_alloc", "segment_map"):
            mapped += e["size"]
        elif action in ("segment_free", "segment_unmap"):
            mapped -= e["size"]
    return alive, waiting, mapped


def look():
    global looks
    looks += 1
    before = torch.cuda.memory_reserved()
    snapshot = torch.cuda.memory._snapshot()
    reserved = {before, torch.cuda.memory_reserved()}  # who asks may find that something is done
    alive, waiting, mapped = replayed(snapshot)
    blocks = [b for s in snapshot["segments"] for b in s["blocks"] if b["address"] not in base]
    shown = {state: {b["address"] for b in blocks if b["state"] == state} for state in ("active_allocated", "active_awaiting_free", "active_pending_free")}
    if alive != shown["active_allocated"]:
        problems.append(f"look {looks}: {len(alive ^ shown['active_allocated'])} live blocks differ")
    pending = shown["active_awaiting_free"] | shown["active_pending_free"]
    if waiting != pending:
        problems.append(f"look {looks}: {len(waiting ^ pending)} waiting blocks differ")
    if held + mapped not in reserved:
        problems.append(f"look {looks}: {held + mapped} mapped, {reserved} reserved")
    return snapshot


for step in range(900):
    act, s = r.random(), streams[r.randrange(3)]
    if act < 0.5 or not live:
        try:
            with torch.cuda.stream(s):
                x = ints(log_uniform(r, 16, 24 * MIB if step % 2 else 96 * MIB))
            live.append(x)
            del x
        except torch.OutOfMemoryError:
            del live[: len(live) // 2]
    elif act < 0.9:
        x = live.pop(r.randrange(len(live)))
        if r.random() < 0.3:
            with torch.cuda.stream(s):
                busy(0.2)
            x.record_stream(s)
        del x
    elif act < 0.93:
        torch.cuda.empty_cache()
    elif act < 0.95 and len(graphs) < 4:
        live.clear()  # so that the capture has room
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(streams[0]):
            graph.capture_begin()
            out = (static * 2)[: 1 << 18].clone()
            graph.capture_end()
        graphs.append((graph, out))
        del graph, out
    elif act < 0.96 and graphs:
        graphs.pop(r.randrange(len(graphs)))
    elif act < 0.98:
        try:
            with torch.cuda.use_mem_pool(pool):
                live.append(ints(log_uniform(r, 512, 4 * MIB)))
        except torch.OutOfMemoryError:
            live.clear()
    if step % 60 == 59:
        look()
    if len(problems) > 4:
        break
snapshot = look()
# The viewers that torch ships.
from torch.cuda import _memory_viz as viz

texts = [viz.segsum(snapshot), viz.trace(snapshot), viz.trace_plot(snapshot), viz.segment_plot(snapshot)]
lines = []
viz.memory(snapshot, format_flamegraph=lambda text, *_: lines.append(text) or "")
viz.segments(snapshot, format_flamegraph=lambda text, *_: lines.append(text) or "")
total = sum(int(line.rsplit(" ", 1)[1]) for line in lines[1].splitlines() if line.strip())
if total != sum(s["total_size"] for s in snapshot["segments"]):
    problems.append(f"the flame graph of segments adds up to {total}")
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "a.pickle")
    torch.cuda.memory._dump_snapshot(path)
    with open(path, "rb") as f:
        texts.append(viz.compare(snapshot["segments"], pickle.load(f)["segments"], format_flamegraph=lambda *_: "same"))
torch.cuda.memory._record_memory_history(enabled=None)
if not all(isinstance(t, str) and t for t in texts):
    problems.append("a viewer is silent")
done(not problems, "; ".join(problems[:3]) or f"{looks} looks, {len(snapshot['device_traces'][0])} entries, all add up")
