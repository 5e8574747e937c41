"""Pools of PyTorch's that have memory of a region and of others: nothing sleeps with a region that it is not of."""

import pytest

from regions_start import START


@pytest.mark.parametrize("when", ["before", "after", "other"])
def test_a_pool_that_others_use_too_stays_awake(bench, when):
    """A tensor outside of the region, or of another one, is in the same MemPool."""
    bench.passes(
        START
        + f"""
when = {when!r}
pool = torch.cuda.MemPool()

def outside():
    with gapless.region("other") if when == "other" else gapless.no_region(), torch.cuda.use_mem_pool(pool):
        return make(3 * MIB, 1)

if when == "before":
    found = outside()
with gapless.region("one"):
    plain = make(2 * MIB, 2)
    with torch.cuda.use_mem_pool(pool):
        inside = make(4 * MIB, 3)
if when != "before":
    found = outside()
assert one("one").live == 2 * MIB, "what cannot sleep with it does not count as its own"
gapless.sleep("one")
assert gapless.is_asleep(plain) and not gapless.is_asleep(found) and not gapless.is_asleep(inside)
assert holds(found, 1) and holds(inside, 3)
gapless.wake("one")
assert holds(plain, 2) and holds(found, 1) and holds(inside, 3)
""",
    )


def test_a_pool_that_falls_asleep_before_others_use_it_wakes_whole(bench):
    bench.passes(
        START
        + """
pool = torch.cuda.MemPool()
with gapless.region("one"), torch.cuda.use_mem_pool(pool):
    inside = make(4 * MIB, 3)
gapless.sleep("one")
assert gapless.is_asleep(inside)
with torch.cuda.use_mem_pool(pool):
    found = make(3 * MIB, 1)
assert not gapless.is_asleep(found) and holds(found, 1)
gapless.wake("one")
assert holds(inside, 3) and holds(found, 1)
# From now on it belongs to no region.
gapless.sleep("one")
assert not gapless.is_asleep(inside) and holds(inside, 3) and holds(found, 1)
gapless.wake("one")
""",
    )


def test_graphs_of_two_regions_that_share_a_pool_stay_awake(bench):
    """torch.compile keeps all graphs of a device in one pool."""
    bench.passes(
        START
        + """
pool = torch.cuda.graph_pool_handle()
graphs, outs = [], []
for at, name in enumerate(["actor", "critic"]):
    with gapless.region(name):
        plain = make(2 * MIB, at)
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], pool=pool):
            outs.append(torch.empty(4 * MIB, dtype=torch.uint8, device="cuda"))
for name in ["actor", "critic"]:
    gapless.sleep(name)
    assert not any(map(gapless.is_asleep, outs)), name
    gapless.wake(name)
del graphs, outs
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() < 5 * MIB
""",
    )


def test_what_a_pool_of_a_region_lends_does_not_sleep(bench):
    bench.passes(
        START
        + """
with gapless.region("one"):
    plain = make(2 * MIB, 2)
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        mine, free = make(8 * MIB, 3), make(64 * MIB, 4)
del free
filler = []
try:
    while True:
        filler.append(torch.empty(48 * MIB, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    pass
spans = [(s["address"], s["address"] + s["total_size"]) for s in pool.snapshot()]
lent = [t for t in filler if any(low <= t.data_ptr() < high for low, high in spans)]
assert lent
gapless.sleep("one")
assert gapless.is_asleep(plain) and not any(map(gapless.is_asleep, lent)) and holds(mine, 3)
filler.clear()
gapless.wake("one")
assert holds(plain, 2) and holds(mine, 3)
""",
    )


def test_a_workspace_of_a_graph_serves_nobody_else(bench):
    """cuBLAS's workspaces are thrown away after a capture, as torch.compile does: the graph keeps the address."""
    bench.passes(
        START
        + """
size = 8519680
side = torch.cuda.Stream()
with gapless.region("engine"):
    weight = torch.zeros(256, 256, device="cuda")
    with torch.cuda.stream(side):
        weight @ weight
    torch._C._cuda_clearCublasWorkspaces()
    graph = torch.cuda.CUDAGraph()
    before = places()
    with torch.cuda.graph(graph, stream=side):
        out = weight @ weight
    made = {place for place, found in places() - before if found >= size}
    torch._C._cuda_clearCublasWorkspaces()
    before = places()
    with torch.cuda.stream(side):
        weight @ weight
    again = {place for place, found in places() - before if found >= size}
is_kept = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 13)
assert not is_kept or (made and again), (made, again)
assert not made & again, "the graph's workspace was handed out"
reserved = torch.cuda.memory_reserved()
torch._C._cuda_clearCublasWorkspaces()
del graph, out
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert not is_kept or torch.cuda.memory_reserved() <= reserved - size, "it goes with its graph"
""",
        CUBLAS_WORKSPACE_CONFIG=":4096:2:16:8",
    )
