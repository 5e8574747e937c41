"""Generators of the program's own that are registered with graphs, in pools that go, on streams of their own, and whose
states are set, cloned and swapped between replays: graphs draw what eager code draws with the same seeds, though all
free memory is written over meanwhile."""
import gc

from common import *

g = start(limit=2 * GIB)
problems, N = [], 70_001


def draws(generator):
    return [torch.rand(N, device="cuda", generator=generator), torch.randn(N, device="cuda", generator=generator),
            torch.randint(0, 1000, (N,), device="cuda", generator=generator)]


def eager(seed, times):
    """The last numbers that `times` rounds draw."""
    generator = torch.Generator("cuda")
    generator.manual_seed(seed)
    for _ in range(times):
        drawn = draws(generator)
    return drawn


def churn():
    """Whatever is free is written over."""
    held = [torch.full((size,), 0x5A5A5A5A, dtype=torch.int32, device="cuda") for size in (100, 130_000, 3 << 20, 40 << 20)]
    torch.cuda.synchronize()
    del held


def captured(generators, pool=None):
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, pool=pool):
        drawn = [draws(generator) for generator in generators]
    return graph, drawn


draws(torch.Generator("cuda"))
torch.cuda.synchronize()
for turn in range(4):
    mempool = torch.cuda.MemPool()
    generators = [torch.Generator("cuda").manual_seed(100 * turn + k) for k in range(3)]
    first, a = captured(generators[:2], mempool.id if turn % 2 else None)
    second, b = captured(generators[1:], first.pool() if turn % 2 else None)
    del mempool
    gc.collect()
    torch.cuda.empty_cache()
    churn()
    for seed in (5, 6):
        for k, generator in enumerate(generators):
            generator.manual_seed(seed + k)
        # The middle generator is drawn from by both graphs, in turns.
        for graph in (first, second, first):
            graph.replay()
            churn()
        wanted = [eager(seed, 2), eager(seed + 1, 3)]
        for mine, theirs in zip(a, wanted):
            if not all(torch.equal(x, y) for x, y in zip(mine, theirs)):
                problems.append(f"turn {turn}, seed {seed}: the first graph drew other numbers")
        wanted = [eager(seed + 1, 2), eager(seed + 2, 1)]
        for mine, theirs in zip(b, wanted):
            if not all(torch.equal(x, y) for x, y in zip(mine, theirs)):
                problems.append(f"turn {turn}, seed {seed}: the second graph drew other numbers")
    # A state that is kept and brought back.
    state = generators[0].get_state()
    first.replay()
    kept = [x.clone() for x in a[0]]
    generators[0].set_state(state)
    churn()
    first.replay()
    if not all(torch.equal(x, y) for x, y in zip(a[0], kept)):
        problems.append(f"turn {turn}: a state that was brought back draws other numbers")
    # Eager numbers between replays move the generator on.
    generators[2].manual_seed(77)
    draws(generators[2])
    generators[1].manual_seed(3)
    second.replay()
    if not all(torch.equal(x, y) for x, y in zip(b[1], eager(77, 2))):
        problems.append(f"turn {turn}: a replay after eager numbers draws others")
    del first, second, a, b, generators
    gc.collect()
    churn()
problems += adds_up()
done(not problems, "; ".join(problems[:3]) or "four turns of two graphs and three generators")
