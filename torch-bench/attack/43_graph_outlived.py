"""Graphs of one pool may be replayed in any order, deleted while they run, and outlived by their tensors."""
from common import *

g = start(limit=2 * GIB)
n = 2 << 20
x = torch.zeros(n, dtype=torch.int32, device="cuda")
side, mistakes, r = torch.cuda.Stream(), 0, rng(43)


def chain(k):
    y = x + k
    for _ in range(8):
        t = y * 1  # temporaries that the graphs of this pool share
        y = t + 1
        del t
    return y


chain(0)  # kernels are loaded before
torch.cuda.synchronize()
for turn in range(6):
    pool = torch.cuda.graph_pool_handle()
    graphs = []
    for k in range(4):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            y = chain(k)
        graphs.append((graph, y, k))
    # Outputs were alive while the later ones were captured, so only a graph that came before may overwrite one:
    # each is read before the next replay.
    for step in range(12):
        x.fill_(100 * turn + step)
        graph, y, k = graphs[r.randrange(4)]
        graph.replay()
        mistakes += int((y != 100 * turn + step + k + 8).sum())
    x.fill_(7000 + turn)
    r.shuffle(graphs)
    keep = []
    while graphs:
        graph, y, k = graphs.pop()
        torch.cuda.synchronize()
        busy(10)
        graph.replay()
        copy = y.clone()  # queued behind the replay
        del graph  # while it waits or runs
        torch.cuda.empty_cache()
        keep.append((y, k, copy))
        junk = fill(ints(24 * MIB), turn)
        del junk
    for y, k, copy in keep:
        mistakes += int((copy != 7000 + turn + k + 8).sum())
    # The last replay was of the last in the list: its tensor holds still, though no graph is left.
    y, k, copy = keep[-1]
    junk = [ints(16 * MIB).fill_(-1) for _ in range(20)]
    torch.cuda.synchronize()
    mistakes += int((y != 7000 + turn + k + 8).sum())
    del junk, y, copy, keep
    torch.cuda.empty_cache()
done(mistakes == 0, f"24 graphs in six pools, {mistakes} wrong, {torch.cuda.memory_allocated() >> 20} MiB left")
