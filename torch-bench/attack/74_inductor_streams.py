"""Inductor's kernels: training with mode="reduce-overhead" over changing shapes, several graphs alive, and dynamic
shapes on side streams give the eager values."""
import copy
import os

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
from common import *

g = start(limit=3 * GIB)
torch.manual_seed(74)
torch.backends.cuda.matmul.allow_tf32 = False
try:
    import torch._dynamo
    import triton  # noqa: F401

    torch.compile(lambda x: (x * 2 + 1).sin(), dynamic=False)(torch.ones(1000, device="cuda"))
except Exception as error:
    skip(f"torch.compile does not run here: {type(error).__name__} {str(error).strip().splitlines()[:1]}")
torch._dynamo.config.cache_size_limit = 64
mistakes, worst, r = 0, 0.0, rng(74)


# Whole numbers: every order of the sums gives the same.
def first(x):
    y = (x * 3 + 1).relu()
    return y, (y - x) * 2


def second(a, b):
    return torch.cat([a + b, a - b]) * 2, (a * b).flip(0)


fast = [torch.compile(f, mode="reduce-overhead", dynamic=False) for f in (first, second)]
kept = []
with torch.no_grad():
    for step in range(60):
        torch.compiler.cudagraph_mark_step_begin()
        n = (1 << 14, 1 << 18, (3 << 19) + 64)[r.randrange(3)]
        x = torch.randint(-50, 50, (n,), device="cuda").float()
        a, b = fast[0](x)
        ea, eb = first(x)
        mistakes += int((a != ea).sum()) + int((b != eb).sum())
        if step % 2:
            c, d = fast[1](a, b)
            ec, ed = second(ea, eb)
            mistakes += int((c != ec).sum()) + int((d != ed).sum())
            kept.append((c.clone(), ec))
            del c, d
        del a, b
        if len(kept) > 5:
            c, ec = kept.pop(0)
            mistakes += int((c != ec).sum())
        if step % 10 == 9:
            junk = [ints(r.randrange(4096, 64 * MIB)).fill_(-1) for _ in range(4)]
            del junk
            torch.cuda.empty_cache()
# Training: forward and backward are graphs of one pool.
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
other = copy.deepcopy(model)
quick = torch.compile(other, mode="reduce-overhead", dynamic=False)
ways = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (model, other)]
for step in range(20):
    torch.compiler.cudagraph_mark_step_begin()
    x = torch.randn(128, 256, device="cuda")
    for run, way in zip((model, quick), ways):
        way.zero_grad(set_to_none=True)
        run(x).square().mean().backward()
        way.step()
worst = max(float((a - b).abs().max()) for a, b in zip(model.parameters(), other.parameters()))
# Dynamic shapes, four streams, inputs that go early.
moving = torch.compile(lambda x: (x * 2).relu() + x.flip(0), dynamic=True)
streams, checks = [torch.cuda.Stream() for _ in range(4)], []
for step in range(120):
    n, s = 1000 + 997 * r.randrange(900), streams[step % 4]
    x = torch.arange(step, step + n, device="cuda", dtype=torch.float32)
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        y = moving(x)
        x.record_stream(s)
        del x
        want = torch.arange(step, step + n, device="cuda", dtype=torch.float32)
        checks.append((y != want * 2 + want.flip(0)).sum())
        del y, want
torch.cuda.synchronize()
mistakes += sum(int(c) for c in checks)
done(mistakes == 0 and worst < 1e-3, f"{mistakes} wrong elements, trained weights {worst:.1e} apart")
