"""Ends of pools' scopes that never began, or that ended before, and releases of pools that do not exist raise, as
natively, in every thread; other scopes stay open and serve their own requests, and in the end nothing is held."""
import gc
import threading

from common import *

start()
end, release = torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool
problems = []


def refused(what, function, *args):
    try:
        function(*args)
        problems.append(f"{what} did not raise")
    except RuntimeError:
        pass


def pool_of(x):
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= x.data_ptr() < segment["address"] + segment["total_size"]:
            return tuple(segment["segment_pool_id"])


def all_refused(where):
    refused(f"{where}: the end of a pool that never was", end, 0, (7, 1234))
    refused(f"{where}: the release of a pool that never was", release, 0, (7, 1234))


for turn in range(10):
    all_refused("outside")
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    refused("the end of a pool that did not begin", end, 0, outer.id)
    with torch.cuda.use_mem_pool(outer):
        a = torch.empty(3 * MIB, device="cuda")
        all_refused("in a pool")
        refused("the end of another pool", end, 0, inner.id)
        thread = threading.Thread(target=all_refused, args=("in a thread",))
        thread.start()
        thread.join()
        b = torch.empty(3 * MIB, device="cuda")
        with torch.cuda.use_mem_pool(inner):
            c = torch.empty(3 * MIB, device="cuda")
        refused("the second end of the inner pool", end, 0, inner.id)
        d = torch.empty(3 * MIB, device="cuda")
    refused("the second end of the outer pool", end, 0, outer.id)
    e = torch.empty(3 * MIB, device="cuda")
    places = [pool_of(x) for x in (a, b, d, e)]
    if places != [outer.id, outer.id, outer.id, (0, 0)]:
        problems.append(f"they lie in {places}, with {outer.id} and {inner.id}")
    # In a capture: nothing of it is ended from outside.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f = torch.empty(3 * MIB, device="cuda")
        all_refused("in a capture")
        h = torch.empty(3 * MIB, device="cuda")
    if pool_of(f) != pool_of(h) or pool_of(f) == (0, 0):
        problems.append(f"what was captured lies in {pool_of(f)} and {pool_of(h)}")
    refused("the end of a capture that is over", end, 0, graph.pool())
    del a, b, c, d, e, f, h, graph, outer, inner
    gc.collect()
    torch.cuda.empty_cache()
    held = torch.cuda.memory_allocated()
    if held > 4096:
        problems.append(f"{held} bytes are held after turn {turn}")
done(not problems, f"{len(problems)} problems: {problems[:3]}")
