"""Snapshots of one pool: they have its segments alone, and the entry that each leaves in the history says of which pool
it was and how much was in use there. Segments that came while stacks were recorded have the stack that they came with,
wherever their memory went in between."""
from common import *

start()
torch.cuda.memory._record_memory_history(stacks="python")
problems, pools, tensors = [], [torch.cuda.MemPool() for _ in range(3)], []


def asks_in_a_pool(pool, size):
    with torch.cuda.use_mem_pool(pool):
        return ints(size)


def asks_outside(size):
    return ints(size)


for turn in range(6):
    sizes = [(3 + turn) * MIB, (7 + 2 * turn) * MIB, 40 * KIB]
    tensors += [asks_in_a_pool(pool, size) for pool, size in zip(pools, sizes)]
    outside = asks_outside((21 + turn) * MIB)
    used = {}
    for pool in pools:
        segments = pool.snapshot()
        if any(tuple(s["segment_pool_id"]) != pool.id for s in segments):
            problems.append(f"a snapshot of {pool.id} shows others")
        used[pool.id] = sum(s["active_size"] for s in segments)
    used[0, 0] = sum(s["active_size"] for s in torch.cuda.memory_snapshot())
    before = len([e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "snapshot"])
    for pool in pools:
        torch.cuda.memory_snapshot(pool.id)
    entries = [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "snapshot"]
    # The one that counted them is the first of those behind.
    last = entries[-len(pools) - 1 :]
    wanted = [used[0, 0]] + [used[pool.id] for pool in pools]
    if [e["size"] for e in last] != wanted or len(entries) != before + len(pools) + 1:
        problems.append(f"turn {turn}: entries of {[e['size'] for e in last]}, not {wanted}")
    if "pool_id" in last[0] and [tuple(e["pool_id"]) for e in last] != [(0, 0)] + [pool.id for pool in pools]:
        problems.append(f"turn {turn}: entries of the pools {[e['pool_id'] for e in last]}")
    del outside
    if turn % 2:
        tensors = tensors[3:]
        torch.cuda.empty_cache()

shown = 0
for segment in torch.cuda.memory._snapshot()["segments"]:
    names = {frame["name"] for frame in segment.get("frames", ())}
    is_pool = tuple(segment["segment_pool_id"]) != (0, 0)
    holds = any(segment["address"] <= x.data_ptr() < segment["address"] + segment["total_size"] for x in tensors)
    if is_pool and holds:
        # torch's own allocator loses the stack of a segment whose first block went.
        shown += "asks_in_a_pool" in names
        if names and "asks_in_a_pool" not in names:
            problems.append(f"a segment of {segment['total_size']} bytes came with {sorted(names)[:4]}")
if shown < 2:
    problems.append(f"only {shown} segments of pools with the stack that they came with")
torch.cuda.memory._record_memory_history(None)
done(not problems, f"{shown} segments of pools, {len(problems)} problems: {problems[:2]}")
