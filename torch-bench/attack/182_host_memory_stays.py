"""The same life again and again: requests over streams, pools, graphs, histories, snapshots, failures, threads, raw
memory, and on Gapless budgets, regions that sleep, elastic tensors and marks of steps. The process's own memory on the
host, its open files and its threads are after the last turn what they were in the middle."""
import ctypes
import gc
import threading

from common import *

g = start(limit=1 * GIB)
problems, libc, memory = [], ctypes.CDLL(None), torch.cuda.memory
many_snapshots()


def measured():
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    libc.malloc_trim(0)
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * 4096, len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def turn(n):
    r, kept = rng(1820), []
    streams = [torch.cuda.Stream() for _ in range(3)]
    for step in range(700):
        with torch.cuda.stream(streams[step % 3]):
            kept.append(torch.empty(log_uniform(r, 8, 8 * MIB), dtype=torch.uint8, device="cuda"))
        if step % 3 == 0:
            kept[-1].record_stream(streams[(step + 1) % 3])
        if len(kept) > 20:
            kept.pop(r.randrange(20))
    kept.clear()
    for k in range(60):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            y = torch.empty(1000 + k, device="cuda")
        del y, pool
    x = torch.zeros(1000, device="cuda")
    for k in range(12):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x + k
        graph.replay()
        del graph, y
    memory._record_memory_history("all", max_entries=2000)
    for k in range(300):
        y = torch.empty(log_uniform(r, 8, MIB), dtype=torch.uint8, device="cuda")
    for _ in range(10):
        memory._snapshot()
    memory._record_memory_history(None)
    for k in range(15):
        try:
            torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
            problems.append("4 GiB were served")
        except torch.OutOfMemoryError:
            pass
    for k in range(100):
        memory.caching_allocator_delete(memory.caching_allocator_alloc(1 + k))

    def run():
        with torch.cuda.stream(torch.cuda.Stream()):
            for k in range(50):
                torch.empty(log_uniform(rng(k), 8, MIB), dtype=torch.uint8, device="cuda")

    for _ in range(4):
        threads = [threading.Thread(target=run) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    if g is None:
        return
    for k in range(20):
        with g.budget("512MiB", tag=f"b{k % 3}"):
            y = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        with g.region(f"r{k % 2}", keep=("host", "discard")[k % 2]):
            w = torch.empty((k % 3 + 1) * MIB, dtype=torch.uint8, device="cuda")
        g.sleep(f"r{k % 2}", guard=False)
        g.wake(f"r{k % 2}")
        g.step()
    for k in range(4):
        cache = g.elastic((64, 1 << 20), torch.uint8)
        cache.grow(40)
        cache.shrink(5)
        del cache
    handle = g.on_pressure(lambda pressure: 0)
    handle.remove()


seen = []
for n in range(14):
    turn(n)
    time.sleep(0.05)  # elastic pages go behind the work, in a thread of their own
    seen.append(measured())
grown = (min(s[0] for s in seen[-2:]) - seen[7][0]) / MIB
if grown > 16:
    problems.append(f"the host's memory grew by {grown:.1f} MiB in six turns: {[s[0] // MIB for s in seen]}")
if min(s[1] for s in seen[-2:]) > seen[7][1] + 2:
    problems.append(f"open files: {[s[1] for s in seen]}")
if min(s[2] for s in seen[-2:]) > seen[7][2] + 2:
    problems.append(f"threads: {[s[2] for s in seen]}")
problems += adds_up()
done(not problems, "; ".join(problems[:3]) or f"14 turns, {grown:.1f} MiB more on the host, {seen[-1][1]} files, {seen[-1][2]} threads")
