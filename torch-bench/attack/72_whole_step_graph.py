"""A whole training step in one graph, with optimizer.step() and zero_grad() inside the capture, and graphed callables
under autocast train as the eager loops do."""
import copy
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
from common import *

g = start(limit=3 * GIB)
torch.manual_seed(72)
torch.backends.cuda.matmul.allow_tf32 = False
width, rows = 1024, 512


def module():
    parts = [torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)]
    return torch.nn.Sequential(*parts).cuda()


def data(step):
    return torch.randn(rows, width, generator=torch.Generator("cuda").manual_seed(step), device="cuda")


def far(a, b):
    return max(float((x - y).abs().max()) for x, y in zip(a.parameters(), b.parameters()))


def junk(step):
    """Other work between replays, which would overwrite what a graph was not left alone with."""
    kept = [ints(log_uniform(rng(step), 512, 40 * MIB)).fill_(-1) for _ in range(6)]
    del kept
    if step % 4 == 0:
        torch.cuda.empty_cache()


eager = module()
graphed = copy.deepcopy(eager)
ways = [torch.optim.AdamW(m.parameters(), lr=1e-3, capturable=True) for m in (eager, graphed)]
static = torch.empty(rows, width, device="cuda")


def step_of(model, way, x):
    way.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    way.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for step in range(9):  # enough to be recognised as steps that repeat
        static.copy_(data(step))
        step_of(graphed, ways[1], static)
torch.cuda.current_stream().wait_stream(side)
for step in range(9):
    step_of(eager, ways[0], data(step))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step_of(graphed, ways[1], static)
worst = 0.0
for step in range(9, 40):
    static.copy_(data(step))
    graph.replay()
    junk(step)
    worst = max(worst, float((step_of(eager, ways[0], data(step)) - loss).abs()))
whole = far(eager, graphed)
# Graphed callables under autocast, with a scaler outside of them.
eager, graphed = module(), None
graphed = copy.deepcopy(eager)
with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
    fast = torch.cuda.make_graphed_callables(graphed, (data(0).requires_grad_(),))
ways = [torch.optim.SGD(m.parameters(), lr=1e-2) for m in (eager, graphed)]
scalers = [torch.amp.GradScaler("cuda", init_scale=256.0) for _ in range(2)]
for step in range(25):
    for run, way, scaler in zip((eager, fast), ways, scalers):
        way.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, cache_enabled=False):
            out = run(data(step).requires_grad_())
            cost = out.float().square().mean()
        scaler.scale(cost).backward()
        scaler.step(way)
        scaler.update()
        del out, cost
    junk(step)
scaled = far(eager, graphed)
ok = whole < 1e-4 and worst < 1e-4 and scaled < 1e-3
done(ok, f"a whole step: parameters {whole:.1e} and losses {worst:.1e} apart; under autocast {scaled:.1e}")
