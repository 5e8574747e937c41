"""A capture that forks over four streams, allocates and frees on each and joins again must replay to the same
values."""
from common import *

g = start(limit=2 * GIB)
sides = [torch.cuda.Stream() for _ in range(4)]
n = 1 << 20


def work(x):
    """Each branch makes temporaries on a stream of its own; the sum is taken after they have joined."""
    main = torch.cuda.current_stream()
    parts = []
    for k, s in enumerate(sides):
        s.wait_stream(main)
        with torch.cuda.stream(s):
            t = x * (k + 2)
            for i in range(6):
                u = t + i  # the block of the one before is free again, on this stream
                t = u * 1
                del u
            parts.append(t)
    for s in sides:
        main.wait_stream(s)
    total = torch.zeros_like(x)
    for p in parts:
        total += p
    return total, parts


x = torch.zeros(n, dtype=torch.int32, device="cuda")
work(x)
torch.cuda.synchronize()
graphs = []
for which in range(3):
    graph = torch.cuda.CUDAGraph()
    pool = graphs[0][0].pool() if which == 2 else None
    with torch.cuda.graph(graph, pool=pool):
        total, parts = work(x)
    graphs.append((graph, total, parts))
r, mistakes = rng(41), 0
for step in range(60):
    x.copy_(torch.arange(step, step + n, dtype=torch.int32, device="cuda"))
    graph, total, parts = graphs[r.randrange(3)]
    graph.replay()
    junk = [ints(r.randrange(4096, 64 * MIB)).fill_(-1) for _ in range(4)]
    if step % 7 == 0:
        torch.cuda.empty_cache()
    # 2 + 3 + 4 + 5 times x, and 0 + 1 + .. + 5 in each of the four branches
    expected = torch.arange(step, step + n, dtype=torch.int32, device="cuda") * 14 + 60
    mistakes += int((total != expected).sum())
    for k, p in enumerate(parts):
        mistakes += int((p != torch.arange(step, step + n, dtype=torch.int32, device="cuda") * (k + 2) + 15).sum())
    del junk
done(mistakes == 0, f"60 replays of three graphs over five streams, {mistakes} wrong elements")
