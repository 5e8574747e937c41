"""Memory that was not asked for in a region does not sleep with it: tensors of a MemPool from before the region was
opened, and what a request took from a pool of the region that lends itself when memory runs out. (Gapless only)"""
from common import *

if NATIVE:
    skip("regions are Gapless'")
g = start(limit=1 * GIB)
problems, mistakes = [], 0


def says(ok, text):
    if not ok:
        problems.append(text)


def look(name, x, mark):
    """A tensor of no region, while one sleeps."""
    global mistakes
    if g.is_asleep(x):
        problems.append(f"{name}: it fell asleep with a region that it is not of")
        return
    mistakes += int(wrong(x, mark))


# A MemPool from before, in which a region's tensors are made later.
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    before = fill(ints(24 * MIB), 1)
with g.region("one"), torch.cuda.use_mem_pool(pool):
    inside = fill(ints(24 * MIB), 2)
with torch.cuda.use_mem_pool(pool):
    after = fill(ints(24 * MIB), 3)
g.sleep("one", guard=False)
look("a tensor of a pool from before", before, 1)
look("a tensor of a pool, made after", after, 3)
torch.cuda.empty_cache()
junk = [ints(40 * MIB).fill_(-1) for _ in range(8)]
del junk
g.wake("one")
for x, mark in ((before, 1), (inside, 2), (after, 3)):
    mistakes += int(wrong(x, mark))
del before, inside, after, pool, x
torch.cuda.synchronize()
torch.cuda.empty_cache()

# A graph from before, whose pool a graph of a region shares: torch's documents say that graphs may share one.
x = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
(x + 1) * 2
torch.cuda.synchronize()
first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(first):
    y = (x + 1) * 2
first.replay()
torch.cuda.synchronize()
mistakes += int((y != 2).sum())
with g.region("two"):
    own = fill(ints(8 * MIB), 5)
    with torch.cuda.graph(second):  # a pool of its own
        z = (x + 2) * 2
g.sleep("two", guard=False)
says(not g.is_asleep(y), "a graph of no region fell asleep")
if not g.is_asleep(y):
    x.fill_(4)
    first.replay()
    mistakes += int((y != 10).sum())
g.wake("two")
x.fill_(5)
second.replay()
first.replay()
mistakes += int((y != 12).sum()) + int((z != 14).sum()) + int(wrong(own, 5))
del first, second, y, z, own
torch.cuda.synchronize()
torch.cuda.empty_cache()

# A pool of a region that lets others have its free memory before they fail.
with g.region("three"):
    kept = fill(ints(16 * MIB), 6)
    spare = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(spare):
        mine = fill(ints(32 * MIB), 7)
        free = fill(ints(256 * MIB), 8)
    del free
torch.cuda.synchronize()
filler = []
try:
    while len(filler) < 40:
        filler.append(fill(ints(64 * MIB), 20 + len(filler)))
except torch.OutOfMemoryError:
    pass
del filler[:2]  # room for what compares
at = [(s["address"], s["address"] + s["total_size"]) for s in spare.snapshot()]
lent = [k for k, t in enumerate(filler, 2) if any(low <= t.data_ptr() < high for low, high in at)]
try:
    g.sleep("three", guard=False)
    asleep = True
except RuntimeError:
    asleep = False  # a refusal changes nothing
for k, t in enumerate(filler, 2):
    look(f"block {k}, {'lent by' if k in lent else 'beside'} the region", t, 20 + k)
del filler[: len(filler) // 2]
torch.cuda.empty_cache()
if asleep:
    try:
        g.wake("three")
    except torch.OutOfMemoryError:
        filler.clear()
        torch.cuda.empty_cache()
        g.wake("three")
mistakes += int(wrong(kept, 6)) + int(wrong(mine, 7))
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or f"{len(lent)} blocks were lent, {mistakes} wrong elements")
