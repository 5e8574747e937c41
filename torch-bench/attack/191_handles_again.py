"""Handles of graph pools that are used again after all of their graphs are gone, and pools whose graphs are reset,
captured again and dropped in any order, with tensors of theirs alive; graphed callables of which some raise while they
warm up. Replays give the right values, and in the end nothing is held."""
import gc

from common import *

g = start(limit=GIB)
r, problems, replays = rng(3), [], 0


def captured(handle, size, seed):
    x = torch.full((size,), float(seed), device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, pool=handle):
        y = x * 2
        z = y + 1
    return graph, x, z, seed


def right(entry):
    global replays
    graph, x, z, seed = entry
    replays += 1
    graph.replay()
    torch.cuda.synchronize()
    if float(z[0]) not in (2.0 * seed + 1, 0.0) or float(z[-1]) not in (2.0 * seed + 1, 0.0):
        problems.append(f"a replay gave {float(z[0])} instead of {2.0 * seed + 1}")


for turn in range(25):
    handle = torch.cuda.graph_pool_handle()
    graphs = [captured(handle, r.choice((10, 70_000, MIB)), k + 1) for k in range(3)]
    for entry in r.sample(graphs, 3):
        right(entry)
    # All but one go, in any order, some by reset.
    r.shuffle(graphs)
    while len(graphs) > 1:
        graph, x, z, seed = graphs.pop()
        if r.random() < 0.5:
            graph.reset()
        del graph, x, z
    graphs.append(captured(handle, 5000, 50))
    for entry in graphs:
        right(entry)
    outlives = graphs[0][2]
    graphs.clear()
    gc.collect()
    float(outlives[0])
    del outlives, entry
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    # The handle's pool is not used now, and is empty: it may begin again.
    again = captured(handle, 3000, 60)
    right(again)
    del again
    torch.cuda.empty_cache()


class Some(torch.nn.Module):
    def __init__(self, fails_at):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(400, 400, device="cuda"))
        self.calls, self.fails_at = 0, fails_at

    def forward(self, x):
        self.calls += 1
        if self.calls == self.fails_at:
            raise ValueError("while it warms up")
        return (x @ self.weight).relu()


for fails_at in (1, 2, 3, 4, None):
    modules = tuple(Some(fails_at if k == 1 else None) for k in range(3))
    sample = tuple((torch.ones(50, 400, device="cuda", requires_grad=True),) for _ in range(3))
    try:
        graphed = torch.cuda.make_graphed_callables(modules, sample)
        if fails_at is not None:
            problems.append(f"a callable that raises at {fails_at} was graphed")
    except ValueError:
        if fails_at is None:
            problems.append("a callable that does not raise was not graphed")
        del modules, sample
        gc.collect()
        torch.cuda.synchronize()
        continue
    x = torch.ones(50, 400, device="cuda", requires_grad=True)
    for _ in range(3):
        # Only two of three go backward.
        a, b = graphed[0](x), graphed[1](x)
        graphed[2](x)
        (a + b).sum().backward()
    if modules[2].weight.grad is not None:
        problems.append("a callable that took no part has gradients")
    del graphed, modules, sample, x, a, b
gc.collect()
torch.cuda.synchronize()
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.empty_cache()
problems += adds_up()
y = ints(600 * MIB)
for problem in problems[:6]:
    print(problem)
done(not problems, f"{replays} replays over handles that came again, {len(problems)} problems")
