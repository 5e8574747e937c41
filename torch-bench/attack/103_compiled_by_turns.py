"""Two compiled models with graphs of torch.compile, each made and warmed up in a region of its own, work by turns: what
one has while the other sleeps is awake, though torch keeps the graphs of both in one pool. (Gapless only)"""
import warnings

from common import *

if NATIVE:
    skip("regions are Gapless'")
g = start(limit=3 * GIB)
try:
    import torch._dynamo
    import torch._inductor.cudagraph_trees  # noqa: F401
except ImportError as error:
    skip(f"no torch.compile here: {error}")
warnings.simplefilter("ignore")
torch._dynamo.config.cache_size_limit = 64
problems, mistakes, n = [], 0, 1 << 20


def make(k):
    weight = fill(ints(4 * n), k)

    def body(x):
        y = x * 2 + weight
        z = y - k
        return z * 3 + y

    return weight, body, torch.compile(body, backend="cudagraphs", dynamic=False)


def check(k, fast, x):
    global mistakes
    torch.compiler.cudagraph_mark_step_begin()
    found = fast(x)
    if g.is_asleep(found):
        problems.append(f"model {k}: its graph wrote to memory that sleeps")
        done(False, problems[0])
    index = torch.arange(n, dtype=torch.int32, device="cuda")
    y = x * 2 + index + k
    mistakes += int((found != (y - k) * 3 + y).sum())


models = {}
with torch.no_grad():
    for k, name in enumerate(("actor", "critic"), 1):
        with g.region(name):
            models[name] = make(k)
            for step in range(4):  # warm-up, capture, replays
                x = torch.full((n,), step, dtype=torch.int32, device="cuda")
                check(k, models[name][2], x)
            del x
    free = make(3)  # of no region, with a graph in the same pool
    for step in range(4):
        check(3, free[2], torch.full((n,), step, dtype=torch.int32, device="cuda"))
    torch.cuda.synchronize()
    for cycle in range(6):
        here, there = ("actor", "critic")[cycle % 2], ("critic", "actor")[cycle % 2]
        try:
            if cycle == 0:
                g.sleep(there, guard=False)
            else:
                g.switch(sleep=there, wake=here, guard=False)
        except RuntimeError as error:
            problems.append(f"cycle {cycle}: {str(error)[:100]}")
            break
        for name in (here, None):
            k, fast = (3, free[2]) if name is None else ({"actor": 1, "critic": 2}[name], models[name][2])
            for step in range(3):
                x = torch.full((n,), 10 * cycle + step, dtype=torch.int32, device="cuda")
                try:
                    check(k, fast, x)
                    torch.cuda.synchronize()
                except RuntimeError as error:
                    problems.append(f"cycle {cycle}, {name or 'of no region'}: {str(error).splitlines()[0][:100]}")
                    done(False, "; ".join(problems[:3]))
        junk = [ints(48 * MIB).fill_(-1) for _ in range(5)]
        del junk
        torch.cuda.empty_cache()
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or f"six turns, {mistakes} wrong elements")
