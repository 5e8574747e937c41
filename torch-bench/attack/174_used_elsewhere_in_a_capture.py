"""Inside a capture tensors of one stream are used on others, told by record_stream, and dropped before the streams
join; also tensors from before the capture, of a MemPool inside of it, and ones that are freed by another thread
meanwhile. Nothing in the graph writes over what another of its branches still reads; afterwards the memory is free
again."""
import gc
import threading

from common import *

g = start(limit=2 * GIB)
sides, n = [torch.cuda.Stream() for _ in range(3)], 1 << 20
r, mistakes, problems = rng(174), 0, []
x = torch.zeros(n, dtype=torch.int32, device="cuda")
(x + 1, torch.cat([x, x]), x.sum())
torch.cuda.synchronize()


def work(k, slow):
    """Branches that read what the main one has dropped already; the main one asks for as much, and writes it."""
    main, sums = torch.cuda.current_stream(), []
    for turn in range(4):
        t = x + (turn + k)
        for s in sides:
            s.wait_stream(main)
        for at, s in enumerate(sides):
            with torch.cuda.stream(s):
                u = t
                for _ in range(slow):  # so that the branch is behind
                    u = u * 1
                sums.append(u + at)
                del u
            t.record_stream(s)
        del t
        for _ in range(3):
            (x * 0 - 7)  # as large, and at once: it must not lie where the branches read
    for s in sides:
        main.wait_stream(s)
    return sums


def right(sums, k, base):
    want = [base + turn + k + at for turn in range(4) for at in range(3)]
    return sum(int((s != w).sum()) for s, w in zip(sums, want))


warm = work(0, 2)
torch.cuda.synchronize()
mistakes += right(warm, 0, 0)
del warm
gc.collect()
torch.cuda.synchronize()
base, graphs, outside = torch.cuda.memory_allocated(), [], []
pool = torch.cuda.graph_pool_handle()
for k in range(6):
    before = fill(ints(4 * n), 50 + k)  # from before the capture, dropped in it
    elsewhere = [ints(log_uniform(r, 4096, 8 * MIB)) for _ in range(6)]
    frees = threading.Thread(target=elsewhere.clear)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool if k % 2 else None, capture_error_mode="thread_local"):
        sums = work(k, 1 + 3 * k)
        for s in sides:
            s.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(sides[0]):
            copy = before + 1
        before.record_stream(sides[0])
        frees.start()
        frees.join()
        torch.cuda.current_stream().wait_stream(sides[0])
    keep = before  # a graph reads it at each replay, so the program keeps it
    del before
    graphs.append((graph, sums, copy, keep, k))
for step in range(40):
    graph, sums, copy, keep, k = graphs[r.randrange(len(graphs))]
    x.fill_(step)
    graph.replay()
    junk = [ints(log_uniform(r, 4096, 30 * MIB)).fill_(-1) for _ in range(4)]
    mistakes += right(sums, k, step) + int(wrong(copy, 51 + k))
    del junk
    if step % 9 == 0:
        torch.cuda.empty_cache()
del graphs, graph, sums, copy, keep, elsewhere
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
for _ in range(20):  # what waited for streams is looked at with requests
    ints(4096)
left = torch.cuda.memory_stats()["active_bytes.all.current"] - base
if left:
    problems.append(f"{left} bytes stay active")
problems += adds_up()
done(mistakes == 0 and not problems, f"40 replays of six graphs, {mistakes} wrong elements {problems[:2]}")
