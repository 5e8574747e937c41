"""Graphs of many batch sizes in one pool, whose free memory lies in pieces between results that stay: replayed in
order and at random, beside requests of other streams and emptied caches, they give the right values. Gapless maps free
pages of the pool a second time, and holds little more than is live."""
import gc

from common import *

g = start(limit=3 * GIB)
side, other, r = torch.cuda.Stream(), torch.cuda.Stream(), rng(206)
ROW = 40_000
x = torch.zeros(64 * ROW, dtype=torch.int32, device="cuda")
problems, mistakes, graphs_made, ratios = [], 0, 0, []


def body(n, k):
    parts = [x[:n] + (k + i) for i in range(6)]
    kept = parts[::2]
    del parts  # three pieces are free, and none has room for what comes
    wide = torch.cat(kept)
    wider = torch.cat([wide, kept[0]])
    del kept
    more = wider + 1
    del wide, wider
    return more[n : 3 * n].clone()


def bad(out, n, k, value):
    return (out[:n] != value + k + 3).sum() + (out[n:] != value + k + 5).sum()


body(ROW, 0)
torch.cuda.synchronize()
rows = list(range(1, 65, 3))
for order in ("rising", "falling", "random"):
    torch.cuda.empty_cache()
    before, live = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    pool, graphs = torch.cuda.graph_pool_handle(), []
    sizes = list(rows)
    if order == "falling":
        sizes.reverse()
    elif order == "random":
        r.shuffle(sizes)
    for k, count in enumerate(sizes):
        n, graph = count * ROW, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            out = body(n, k)
        graphs.append((graph, out, n, k))
        graphs_made += 1
    most = torch.cuda.max_memory_allocated() - live
    ratios.append((torch.cuda.memory_reserved() - before) / max(1, most))
    for step in range(4):
        # In the order of the captures no graph writes to a result of another.
        x.fill_(100 + step)
        for graph, _, _, _ in graphs:
            graph.replay()
        with torch.cuda.stream(other):  # beside them
            beside = fill(ints(log_uniform(r, 512, 48 * MIB)), step)
        mine = fill(ints(log_uniform(r, 512, 48 * MIB)), step + 1)
        mistakes += int(sum(bad(out, n, k, 100 + step) for _, out, n, k in graphs))
        if step % 2:
            torch.cuda.empty_cache()
        for _ in range(8):  # at random: each result is read before the next replay
            graph, out, n, k = graphs[r.randrange(len(graphs))]
            x.fill_(step)
            graph.replay()
            mistakes += int(bad(out, n, k, step))
        torch.cuda.synchronize()
        mistakes += int(wrong(beside, step)) + int(wrong(mine, step + 1))
        del beside, mine
    problems += adds_up()
    # Half of the graphs go, others come in their place, and all are right.
    r.shuffle(graphs)
    del graphs[: len(graphs) // 2]
    graph = out = None
    for k in range(6):
        n, graph = r.choice(rows) * ROW, torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            out = body(n, 50 + k)
        graphs.append((graph, out, n, 50 + k))
        graphs_made += 1
        x.fill_(9 + k)
        graph.replay()
        mistakes += int(bad(out, n, 50 + k, 9 + k))
    for graph, out, n, k in graphs:
        x.fill_(7)
        graph.replay()
        mistakes += int(bad(out, n, k, 7))
    graph = out = None
    del graphs
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if torch.cuda.memory_reserved() > before + 8 * MIB:
        problems.append(f"{torch.cuda.memory_reserved() - before} bytes stay reserved ({order})")
if g is not None and not g.stats()["gapless.graph_windows_made"]:
    problems.append("no window was made")
text = f"{graphs_made} graphs, {mistakes} wrong elements, held over live: " + ", ".join(f"{q:.2f}" for q in ratios)
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or text)
