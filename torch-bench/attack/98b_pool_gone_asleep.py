"""A graph, or a MemPool, of a region goes while its region sleeps, and before it falls asleep: tensors of its memory
that live on sleep with the region, wake with it, and have their bytes. Memory that comes while it sleeps keeps no
region from waking. (Gapless only)"""
from common import *

if NATIVE:
    skip("regions are Gapless'")
g = start(limit=1 * GIB)
problems, mistakes = [], 0


def says(ok, text):
    if not ok:
        problems.append(text)


def made(kind, mark):
    """A tensor in memory of a graph's pool or of a MemPool, and the object that keeps that pool."""
    if kind == "graph":
        source = fill(ints(4 * MIB), mark)
        keeper = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(keeper):
            out = source.clone()
        keeper.replay()
        torch.cuda.synchronize()
        return out, keeper
    keeper = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(keeper):
        out = fill(ints(4 * MIB), mark)
    return out, keeper


for turn, (kind, when) in enumerate((k, w) for k in ("graph", "pool") for w in ("asleep", "before", "never")):
    name, text = f"region-{turn}", f"{kind} that goes {when}"
    with g.region(name):
        plain = fill(ints(3 * MIB), 10 * turn)
        out, keeper = made(kind, 10 * turn + 1)
    if when == "before":
        del keeper
    g.sleep(name)
    says(g.is_asleep(plain), f"{text}: the region does not sleep")
    says(g.is_asleep(out), f"{text}: its tensor stays awake")
    if when == "asleep":
        del keeper
    torch.cuda.empty_cache()
    junk = [ints(40 * MIB).fill_(-1) for _ in range(6)]
    del junk
    g.wake(name)
    says(not g.is_asleep(plain), f"{text}: the region does not wake")
    if g.is_asleep(out):
        problems.append(f"{text}: its tensor sleeps on")  # touching it would end the context
    else:
        mistakes += int(wrong(out, 10 * turn + 1))
    mistakes += int(wrong(plain, 10 * turn))
    del plain, out
    if when == "never":
        del keeper
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
# A region that holds nothing sleeps and wakes like any other.
with g.region("empty"):
    pass
for turn in range(3):
    try:
        g.sleep("empty", guard=False)
        g.wake("empty")
    except RuntimeError as error:
        problems.append(f"an empty region: {str(error)[:80]}")
        break
# Memory and graphs that come while the region sleeps are awake, and keep no region from waking.
with g.region("late"):
    plain = fill(ints(3 * MIB), 900)
g.sleep("late", guard=False)
for kind in ("plain", "graph", "pool"):
    with g.region("late"):
        out, keeper = (fill(ints(5 * MIB), 901), None) if kind == "plain" else made(kind, 901)
    says(not g.is_asleep(out), f"{kind} that comes late: it sleeps")
    try:
        g.wake("late")
        mistakes += int(wrong(plain, 900)) + int(wrong(out, 901))
    except RuntimeError as error:
        problems.append(f"{kind} that comes late: {str(error)[:80]}")
    del out, keeper
    torch.cuda.synchronize()
    if not g.is_asleep(plain):
        g.sleep("late", guard=False)
if g.is_asleep(plain):
    g.wake("late")
mistakes += int(wrong(plain, 900))
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:7]) or f"six ways to go, {mistakes} wrong elements")
