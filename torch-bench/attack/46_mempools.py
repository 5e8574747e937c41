"""MemPools that are nested, used by two threads, deleted with live tensors and drained in the end keep their bytes
and their books."""
import threading

from common import *

g = start(limit=3 * GIB)
problems = []


def says(ok, text):
    if not ok:
        problems.append(text)


def held(pool):
    return sum(s["allocated_size"] for s in pool.snapshot())


# Nested: the inner pool gets what is asked for inside, the outer one before and after.
outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
with torch.cuda.use_mem_pool(outer):
    a = fill(ints(24 * MIB), 1)
    with torch.cuda.use_mem_pool(inner):
        b = fill(ints(40 * MIB), 2)
    c = fill(ints(24 * MIB), 3)
d = fill(ints(24 * MIB), 4)
says(held(inner) == 40 * MIB, f"inner holds {held(inner)}")
says(held(outer) == 48 * MIB, f"outer holds {held(outer)}")
says(outer.use_count() == 1 and inner.use_count() == 1, f"used {outer.use_count()} and {inner.use_count()} times")
# An exception inside leaves nothing routed.
try:
    with torch.cuda.use_mem_pool(outer):
        raise KeyError("out")
except KeyError:
    pass
e = ints(24 * MIB)
says(held(outer) == 48 * MIB, "a request after an exception went to the pool")
del e
# Two threads, each with its pool at the same time; the routing of one says nothing about the other.
pools, blocks, meet = [torch.cuda.MemPool(), torch.cuda.MemPool()], [[], []], threading.Barrier(2)


def worker(k):
    with torch.cuda.stream(torch.cuda.Stream()):
        with torch.cuda.use_mem_pool(pools[k]):
            for step in range(40):
                meet.wait(20)
                blocks[k].append(fill(ints((2 + k) * MIB + 4096 * step), 1000 * k + step))
        blocks[k].append(fill(ints(2 * MIB), 1000 * k + 40))
        torch.cuda.current_stream().synchronize()


threads = [threading.Thread(target=worker, args=(k,)) for k in range(2)]
for t in threads:
    t.start()
for t in threads:
    t.join(40)
for k in range(2):
    at = [(s["address"], s["address"] + s["total_size"]) for s in pools[k].snapshot()]
    inside = [any(low <= x.data_ptr() < high for low, high in at) for x in blocks[k]]
    says(inside == [True] * 40 + [False], f"thread {k}: {sum(inside)} of 41 blocks in its pool")
    says(sum(int(wrong(x, 1000 * k + i)) for i, x in enumerate(blocks[k])) == 0, f"thread {k}: wrong bytes")
# Deleted while tensors live: these keep their bytes, and their memory comes back after them.
before = torch.cuda.memory_allocated()
del outer, inner, pools
torch.cuda.empty_cache()
junk = [ints(30 * MIB).fill_(-1) for _ in range(20)]
mistakes = sum(int(wrong(x, k)) for x, k in ((a, 1), (b, 2), (c, 3), (d, 4)))
says(mistakes == 0, f"{mistakes} wrong elements after the pools were deleted")
says(torch.cuda.memory_allocated() == before + 20 * 30 * MIB, "the books changed when the pools were deleted")
del a, b, c, d, blocks, junk
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = torch.cuda.memory_reserved()
says(left <= 24 * MIB, f"{left >> 20} MiB reserved in the end")
problems += adds_up()
done(not problems, "; ".join(problems) or f"all as it should be, {left >> 20} MiB reserved in the end")
