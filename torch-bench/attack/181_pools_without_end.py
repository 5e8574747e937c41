"""A server that makes a MemPool or captures a graph for each request, thousands of times, with tensors that go before
their pool and after it: bytes are right, nothing of what went is kept, and the work for each does not grow with how
many there were before (counted in processor time, with room for noise)."""
import gc

from common import *

g = start(limit=1 * GIB)
problems, mistakes, r = [], 0, rng(181)
side, kept = torch.cuda.Stream(), []
x = torch.zeros(4096, device="cuda")
(x + 1, torch.empty(1000, device="cuda").fill_(3))
torch.cuda.synchronize()


def pool(k):
    global mistakes
    made = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(made):
        y = torch.empty(log_uniform(r, 8, 1 << 16), dtype=torch.int32, device="cuda")
    if k % 50 == 0:
        fill(y, k)
        mistakes += int(wrong(y, k))
    if k % 25 == 0:  # it outlives its pool
        kept.append(y)
        if len(kept) > 8:
            kept.pop(0)
    del made
    del y  # as a rule after its pool
    if k % 100 == 0:  # torch's own allocator keeps what such pools left until then
        torch.cuda.empty_cache()


def graph(k):
    global mistakes
    made = torch.cuda.CUDAGraph()
    with torch.cuda.graph(made):
        y = x + k
    if k % 20 == 0:
        made.replay()
        mistakes += int((y != k).sum()) if float(y[0]) else 0
    del y, made


def spent(work, count, base):
    began = time.thread_time()
    for k in range(count):
        work(base + k)
    return time.thread_time() - began


pools = [spent(pool, 1000, 1000 * n) for n in range(14)]
graphs = [spent(graph, 150, 150 * n) for n in range(6)]
pools.append(spent(pool, 1000, 14000))
for name, took in (("pools", pools), ("graphs", graphs)):
    if min(took[-2:]) > 4 * sorted(took[:3])[1] + 0.05:
        problems.append(f"{name}: {' '.join(f'{s:.2f}' for s in took)} s of processor time")
kept.clear()
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
private = [s for s in torch.cuda.memory_snapshot() if s["segment_pool_id"] != (0, 0)]
if private:
    problems.append(f"{len(private)} segments of pools are left")
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"15,000 pools in {sum(pools):.1f} s, 900 graphs in {sum(graphs):.1f} s, {mistakes} wrong elements")
