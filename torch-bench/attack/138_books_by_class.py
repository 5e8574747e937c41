"""Statistics of small and of large requests, of each pool and in all, agree with the snapshot at every look, while
threads with streams of their own ask for sizes around the border, in pools, graphs and outside, and reset peaks."""
import threading

from common import *

g = start(limit=3 * GIB)
many_snapshots()
problems, lock = [], threading.Lock()
GROUPS = ("allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "segment")


def look(where):
    """No other thread asks for memory meanwhile."""
    stats, segments = torch.cuda.memory_stats(), torch.cuda.memory_snapshot()
    found = {}
    for kind in ("small", "large"):
        mine = [s for s in segments if s["segment_type"] == kind]
        blocks = [b for s in mine for b in s["blocks"]]
        held = [b for b in blocks if b["state"] == "active_allocated"]
        used = [b for b in blocks if b["state"] != "inactive"]
        found[kind] = {
            "allocation": len(held),
            "active": len(used),
            "allocated_bytes": sum(b["size"] for b in held),
            "active_bytes": sum(b["size"] for b in used),
            "reserved_bytes": sum(s["total_size"] for s in mine),
            "segment": len(mine),
        }
        for name, value in found[kind].items():
            told = stats[f"{name}.{kind}_pool.current"]
            if told != value:
                problems.append(f"{where}: {name} of {kind} requests is {told}, and {value} in the snapshot")
    for name in GROUPS:
        for what in ("current", "allocated", "freed"):
            parts = stats[f"{name}.small_pool.{what}"] + stats[f"{name}.large_pool.{what}"]
            if parts != stats[f"{name}.all.{what}"]:
                problems.append(f"{where}: {name}.all.{what} is {stats[f'{name}.all.{what}']}, its parts {parts}")
        for pool in ("all", "small_pool", "large_pool"):
            s = {what: stats[f"{name}.{pool}.{what}"] for what in ("current", "peak", "allocated", "freed")}
            if s["peak"] < s["current"] or s["allocated"] - s["freed"] != s["current"]:
                problems.append(f"{where}: {name}.{pool} is {s}")
        peaks = [stats[f"{name}.{pool}.peak"] for pool in ("all", "small_pool", "large_pool")]
        if not max(peaks[1:]) <= peaks[0] <= sum(peaks[1:]):
            problems.append(f"{where}: peaks of {name} are {peaks}")
    for s in segments:
        at = s["address"]
        for b in s["blocks"]:
            if b["address"] != at:
                problems.append(f"{where}: a block does not begin where the one before it ends")
            at += b["size"]
        if at != s["address"] + s["total_size"] or s["allocated_size"] > s["active_size"]:
            problems.append(f"{where}: the blocks of a segment do not fill it")


# The first sums are of nothing.
torch.cuda.empty_cache()
look("at the beginning")
side = torch.cuda.Stream()
pools, bad = [torch.cuda.MemPool() for _ in range(3)], []
barrier = threading.Barrier(5)


def worker(k):
    r, mine, live, wrongs = rng(1380 + k), torch.cuda.Stream(), [], 0
    try:
        with torch.cuda.stream(mine):
            for turn in range(8):
                for step in range(60):
                    size = log_uniform(r, 512, 64 * KIB) if step % 3 == 0 else log_uniform(r, 100 * KIB, 3 * MIB)
                    mark = r.randrange(1 << 18)
                    if k < 3 and r.random() < 0.3:
                        with torch.cuda.use_mem_pool(pools[k]):
                            x = ints(size)
                    else:
                        x = ints(size)
                    live.append((fill(x, mark), mark))
                    if r.random() < 0.1:
                        x.record_stream(side)
                    del x
                    while len(live) > 30:
                        x, mark = live.pop(r.randrange(len(live)))
                        if step % 10 == 0:
                            wrongs += int(wrong(x, mark))
                        del x
                    if step % 25 == k:
                        torch.cuda.reset_peak_memory_stats()
                barrier.wait(60)  # the main thread looks
                barrier.wait(60)
    except BaseException as error:
        problems.append(f"{type(error).__name__}: {str(error)[:100]}")
        barrier.abort()
    bad.append(wrongs)


threads = [threading.Thread(target=worker, args=(k,)) for k in range(4)]
for t in threads:
    t.start()
try:
    for turn in range(8):
        barrier.wait(60)
        look(f"turn {turn}")
        if turn == 3:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            look("after an emptied cache")
        if turn == 5:
            graph = torch.cuda.CUDAGraph()
            x = torch.zeros(300 * KIB, device="cuda")
            with torch.cuda.graph(graph):
                y = x + 1
                z = torch.cat([y, y, y, y])
            look("after a capture")
            del graph, y, z
            look("after a graph")
        barrier.wait(60)
except threading.BrokenBarrierError:
    pass
for t in threads:
    t.join(60)
torch.cuda.synchronize()
del pools
torch.cuda.empty_cache()
look("at the end")
done(not problems and sum(bad) == 0, f"{len(problems)}: " + "; ".join(problems[:3]) if problems else f"twelve looks, {sum(bad)} wrong elements")
