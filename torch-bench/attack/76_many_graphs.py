"""Seven hundred graphs, each with a pool of its own, keep their values while half of them go and others come."""
from common import *

g = start(limit=3 * GIB)
n, side, r = 16 << 10, torch.cuda.Stream(), rng(76)
x = torch.zeros(n, dtype=torch.int32, device="cuda")


def body(k):
    y = x * 2
    z = y + k
    del y
    return z - x


body(0)
torch.cuda.synchronize()


def captured(k):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):  # torch.cuda.graph() would collect garbage each time
        graph.capture_begin()
        out = body(k)
        graph.capture_end()
    return graph, out, k


def look(graphs, value):
    x.fill_(value)
    r.shuffle(graphs)
    for graph, _, _ in graphs:
        graph.replay()
    return sum((out != value + k).sum() for _, out, k in graphs)


graphs, bad, count = [], [], 0
for k in range(700):
    graphs.append(captured(k))
    count += 1
    if k % 100 == 99:  # requests beside, in the default pool
        junk = [ints(log_uniform(r, 512, 16 * MIB)).fill_(-1) for _ in range(8)]
        del junk
bad.append(look(graphs, 5))
r.shuffle(graphs)
del graphs[350:]
torch.cuda.synchronize()
torch.cuda.empty_cache()
kept = [fill(ints(log_uniform(r, 512, 4 * MIB)), 1000 + k) for k in range(100)]
bad.append(look(graphs, 6))
for k in range(200):
    graphs.append(captured(5000 + k))
    count += 1
bad.append(look(graphs, 7))
streams = [torch.cuda.Stream() for _ in range(40)]  # lanes of streams, beyond those of the pools
for k, s in enumerate(streams):
    with torch.cuda.stream(s):
        kept.append(fill(ints(log_uniform(r, 512, 4 * MIB)), 1100 + k))
torch.cuda.synchronize()
for at, y in enumerate(kept):
    bad.append(wrong(y, 1000 + at))
bad.append(look(graphs, 8))
mistakes = sum(int(b) for b in bad)
problems = adds_up()
del y, kept, graphs
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = torch.cuda.memory_reserved() >> 20
ok = mistakes == 0 and not problems and left <= 96
done(ok, f"{count} graphs, {mistakes} wrong elements, {left} MiB reserved in the end {problems[:2]}")
