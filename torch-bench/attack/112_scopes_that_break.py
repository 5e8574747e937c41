"""Exceptions inside pools, graphs and streams within each other, generators that are thrown away with a pool open and
threads that end inside one: later requests are served by the right pools, and nothing is lost."""
import gc
import threading

from common import *

g = start(limit=2 * GIB)
r, problems, mistakes = rng(112), [], 0
streams = [torch.cuda.Stream() for _ in range(3)]
x = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
(x + 1) * 2
torch.cuda.synchronize()
gc.collect()
base = torch.cuda.memory_allocated()


def says(ok, text):
    if not ok:
        problems.append(text)


def is_in(pool, t):
    return any(s["address"] <= t.data_ptr() < s["address"] + s["total_size"] for s in pool.snapshot())


class Out(Exception):
    pass


for turn in range(30):
    a, b = torch.cuda.MemPool(), torch.cuda.MemPool()
    kept, depth, t = [], r.randrange(5), None
    # Pools and streams within each other, and an exception at some depth.
    try:
        with torch.cuda.use_mem_pool(a):
            kept.append((fill(ints(3 * MIB), 1), 1, a))
            if depth == 0:
                raise Out
            with torch.cuda.stream(streams[turn % 3]):
                t = fill(ints(2 * MIB), 2)
                kept.append((t, 2, a))
                if depth == 1:
                    raise Out
                with torch.cuda.use_mem_pool(b):
                    kept.append((fill(ints(5 * MIB), 3), 3, b))
                    with torch.cuda.stream(streams[(turn + 1) % 3]):
                        kept.append((fill(ints(700 * KIB), 4), 4, b))
                        if depth == 2:
                            raise Out
                    if depth == 3:
                        torch.empty(1 << 45, device="cuda")  # out of memory, inside
                kept.append((fill(ints(2 * MIB), 5), 5, a))
    except (Out, torch.OutOfMemoryError):
        pass
    torch.cuda.synchronize()
    outside = fill(ints(4 * MIB), 6)
    says(not is_in(a, outside) and not is_in(b, outside), f"turn {turn}: a request after depth {depth} went to a pool")
    says(all(is_in(pool, t) for t, _, pool in kept), f"turn {turn}: a tensor is in another pool")
    mistakes += sum(int(wrong(t, mark)) for t, mark, _ in kept) + int(wrong(outside, 6))

    # A generator with a pool open, which the collector closes, out of order.
    def maker(pool):
        with torch.cuda.use_mem_pool(pool):
            yield fill(ints(MIB), 7)
            yield fill(ints(MIB), 8)

    first, second = maker(a), maker(b)
    p, q = next(first), next(second)
    says(is_in(a, p) and is_in(b, q), f"turn {turn}: a generator's tensor is in another pool")
    if turn % 2:
        second.close()
        first.close()
    else:
        first.close()  # the older one first: the newer is still open
        s = fill(ints(MIB), 9)
        says(is_in(b, s), f"turn {turn}: the pool that is still open does not serve")
        mistakes += int(wrong(s, 9))
        del s
    del first, second
    gc.collect()
    after = ints(MIB)
    says(not is_in(a, after) and not is_in(b, after), f"turn {turn}: a pool stays open after its generator")
    mistakes += int(wrong(p, 7)) + int(wrong(q, 7))

    # An exception in a capture: the graph goes, and the next capture of the same pool works.
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=streams[0]):
            y = (x + turn) * 2
            if turn % 3 == 0:
                with torch.cuda.use_mem_pool(b):  # a pool inside a capture
                    w = y + 1
            if turn % 2:
                raise Out
    except Out:
        y = w = None
    else:
        x.fill_(turn)
        graph.replay()
        mistakes += int((y != 4 * turn).sum())
        if turn % 3 == 0:
            mistakes += int((w != 4 * turn + 1).sum())
    y = w = None
    del graph, kept, outside, p, q, after, t
    if turn % 2:
        del a, b
    torch.cuda.synchronize()
    gc.collect()


# Threads that end with a pool open.
def ends(pool, made):
    generator = torch.cuda.use_mem_pool(pool)
    generator.__enter__()
    made.append(fill(ints(2 * MIB), 5))
    torch.cuda.current_stream().synchronize()
    made.append(generator)


for turn in range(6):
    pool, made = torch.cuda.MemPool(), []
    thread = threading.Thread(target=ends, args=(pool, made))
    thread.start()
    thread.join(20)
    mine = fill(ints(2 * MIB), 6)
    says(not is_in(pool, mine), "another thread's pool serves this one")
    mistakes += int(wrong(made[0], 5)) + int(wrong(mine, 6))
    made[1].__exit__(None, None, None)  # by this thread, later
    del made, mine, pool
a = b = None
torch.cuda.synchronize()
gc.collect()
torch.cuda.empty_cache()
left = torch.cuda.memory_allocated() - base
says(left <= 4 * MIB, f"{left} bytes stay allocated")
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or f"36 turns, {mistakes} wrong elements")
