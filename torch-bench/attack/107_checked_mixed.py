"""Checked mode finds nothing in a program that is right: streams, captures beside frees of other threads, MemPools,
regions that sleep, storages that shrink to nothing, elastic tensors. (Gapless only)"""
import threading

from common import *

if NATIVE:
    skip("checked mode is Gapless'")
g = start(limit=2 * GIB, check=True)
r, problems, mistakes = rng(107), [], 0
streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
x = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")
(x + 1) * 2
torch.cuda.synchronize()
stop, errors, freed = threading.Event(), [], [0]


def worker(k):
    """Frees on a stream of its own, while the main thread captures."""
    mine, kept = rng(k), []
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                mark = mine.randrange(1 << 18)
                kept.append((fill(ints(log_uniform(mine, 512, 3 * MIB)), mark), mark))
                if len(kept) > 6:
                    t, mark = kept.pop(mine.randrange(6))
                    if int(wrong(t, mark)):
                        errors.append("wrong bytes beside")
                    del t
                    freed[0] += 1
    except BaseException as error:
        errors.append(repr(error)[:200])


thread = threading.Thread(target=worker, args=(1,))
thread.start()
side, graphs = torch.cuda.Stream(), []
try:
    for k in range(12):
        graph = torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            y = x + k
            time.sleep(0.01)
            z = y * 2
            del y
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
        graphs.append((graph, z, k))
        for graph, z, k in graphs:
            x.fill_(3)
            graph.replay()
            mistakes += int((z != 2 * (3 + k)).sum())
        if len(graphs) > 3:
            graphs.pop(0)
        del graph, z
except RuntimeError as error:
    problems.append(f"captures: {str(error)[:200]}")
stop.set()
thread.join(60)
problems += errors
acts = 0
try:
    kept, end = [], time.monotonic() + 4
    with g.region("calm"):
        sleeper = fill(ints(3 * MIB), 9)
    cache = g.elastic((1024, 65536), torch.int32)
    cache.grow(64)
    while time.monotonic() < end and not problems:
        acts += 1
        way, s = r.randrange(8), streams[r.randrange(3)]
        mark = r.randrange(1 << 18)
        with torch.cuda.stream(s):
            if way < 3:
                kept.append((fill(ints(log_uniform(r, 512, 6 * MIB) | 1), mark), mark, s))
            elif way == 3:
                pool = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(pool):
                    kept.append((fill(ints(log_uniform(r, 512, 4 * MIB)), mark), mark, s))
                del pool
            elif way == 4:
                t = fill(ints(log_uniform(r, 4096, 4 * MIB)), mark)
                t.untyped_storage().resize_(0)
                t.untyped_storage().resize_(4 * t.numel())
                kept.append((fill(t, mark + 1), mark + 1, s))
                del t
            elif way == 5:
                t = fill(ints(log_uniform(r, 4096, 4 * MIB)), mark)
                other = streams[r.randrange(3)]
                other.wait_stream(s)
                with torch.cuda.stream(other):
                    bad = wrong(t, mark)
                t.record_stream(other)
                del t
                other.synchronize()
                mistakes += int(bad)
        if way == 6 and acts % 5 == 0:
            torch.cuda.synchronize()
            g.sleep("calm", guard=False)
            g.wake("calm")
            mistakes += int(wrong(sleeper, 9))
        elif way == 7:
            if cache.tensor.shape[0] > 1000:
                cache.shrink(64)
            cache.grow(3)
            cache.tensor[-1].fill_(acts)
            mistakes += int((cache.tensor[-1] != acts).sum())
            torch.cuda.empty_cache()
        while len(kept) > 12:
            t, mark, s = kept.pop(r.randrange(12))
            with torch.cuda.stream(s):
                mistakes += int(wrong(t, mark))
            del t
    torch.cuda.synchronize()
    for t, mark, s in kept:
        mistakes += int(wrong(t, mark))
except RuntimeError as error:
    problems.append(f"{str(error)[:300]}")
findings = g.stats()["gapless.check.findings"]
if findings:
    problems.append(f"{findings} findings in a program that is right")
problems += adds_up()
done(mistakes == 0 and not problems, f"{acts} acts, {freed[0]} frees beside captures, {mistakes} wrong; {problems[:2]}")
