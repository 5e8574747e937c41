"""Graphs with much memory of their own are dropped while a replay of them runs, and memory is taken at once by others:
the replay reads and writes what it was captured with until it is done, and then the memory comes back."""
import gc

from common import *

g = start(limit=3 * GIB)
side, other, r = torch.cuda.Stream(), torch.cuda.Stream(), rng(208)
mistakes, problems, turns = 0, [], 0
N = 6 << 20  # 24 MiB each
x = torch.zeros(N, dtype=torch.int32, device="cuda")


def body(out, k):
    busy(20)
    parts = [x + (k + i) for i in range(6)]
    kept = parts[::2]
    del parts
    wide = torch.cat(kept)  # in pieces that are free
    out.copy_(wide[N : 2 * N])
    out += wide[:N]
    out += wide[2 * N :]


out = torch.empty_like(x)
body(out, 0)
torch.cuda.synchronize()
base = torch.cuda.memory_reserved()
for turn in range(10):
    x.fill_(turn)
    count = 1 + turn % 3
    outs = [torch.empty_like(x) for _ in range(count)]
    pool, graphs = torch.cuda.graph_pool_handle(), []
    for k in range(count):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            body(outs[k], k)
        graphs.append(graph)
    graph = None
    # Frees of the captures are long settled when the replays begin.
    for _ in range(4):
        with torch.cuda.stream(other):
            fill(ints(4 * MIB), 1)
        fill(ints(4 * MIB), 2)
        torch.cuda.synchronize()
    stream = (torch.cuda.current_stream(), side, other)[turn % 3]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for k in range(count):
            graphs[k].replay()
    del graphs  # the pool has no user from here on
    gc.collect()
    if turn % 2:
        # A soft limit would be passed, or another pool comes: what no work uses goes back.
        again = torch.cuda.CUDAGraph()
        with torch.cuda.graph(again, stream=side):
            y = x + 1
        del again, y
    junk = [fill(ints(r.randrange(1, 48) * MIB), 5) for _ in range(6)]
    with torch.cuda.stream(other):
        more = fill(ints(64 * MIB), 6)
    torch.cuda.synchronize()
    for k, y in enumerate(outs):
        mistakes += int((y != 3 * (turn + k) + 6).sum())
    mistakes += sum(int(wrong(y, 5)) for y in junk) + int(wrong(more, 6))
    del junk, more, outs, y
    turns += 1
    problems += adds_up()
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = torch.cuda.memory_reserved() - base
if left > 64 * MIB:
    problems.append(f"{left >> 20} MiB more stay reserved")
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or f"{turns} turns, {mistakes} wrong elements")
