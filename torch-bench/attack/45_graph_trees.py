"""Graph trees of torch.compile with changing shapes and branches, whose pools are put back to earlier states, give
the eager values."""
from common import *

g = start(limit=3 * GIB)
try:
    import torch._dynamo
    import torch._inductor.cudagraph_trees  # noqa: F401
except ImportError as error:
    skip(f"no torch.compile here: {error}")
torch._dynamo.config.cache_size_limit = 64


def first(x):
    y = x * 3
    z = y + 1
    return z * 2, y - 1


def left(a, b):
    t = torch.cat([a, b])
    return (t + t) * 1, a - b


def right(a, b):
    t = a.repeat(3)
    return t - 2


fast = [torch.compile(f, backend="cudagraphs", dynamic=False) for f in (first, left, right)]
r, mistakes, steps = rng(45), 0, 0
sizes = [1 << 12, 1 << 18, 3 << 19, (1 << 20) + 256]
held = []
with torch.no_grad():
    for step in range(120):
        torch.compiler.cudagraph_mark_step_begin()
        n = sizes[r.randrange(4)]
        x = torch.arange(step, step + n, dtype=torch.int32, device="cuda")
        a, b = fast[0](x)
        ea, eb = first(x)
        mistakes += int((a != ea).sum()) + int((b != eb).sum())
        way = r.randrange(3)
        if way == 1:
            c, d = fast[1](a, b)
            ec, ed = left(ea, eb)
            mistakes += int((c != ec).sum()) + int((d != ed).sum())
            held.append((c.clone(), ec))
            del c, d
        elif way == 2:
            if r.random() < 0.5:
                del b  # a live output less when the next graph is recorded
                b = torch.zeros_like(a)
            c = fast[2](a, b)
            mistakes += int((c != right(ea, eb)).sum())
            del c
        del a, b
        if len(held) > 4:
            c, ec = held.pop(0)
            mistakes += int((c != ec).sum())
        if step % 9 == 0:
            junk = [ints(r.randrange(4096, 96 * MIB)).fill_(-1) for _ in range(3)]
            del junk
            torch.cuda.empty_cache()
        steps += 1
done(mistakes == 0, f"{steps} steps of four shapes and three branches, {mistakes} wrong elements")
