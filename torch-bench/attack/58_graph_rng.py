"""Graphs that draw random numbers draw those of their seed again, whatever is allocated and freed between replays."""
from common import *

g = start(limit=2 * GIB)
x = torch.ones(1 << 20, device="cuda")
torch.nn.functional.dropout(x, 0.3) * torch.rand_like(x) + torch.randn(1 << 20, device="cuda")
torch.cuda.synchronize()
graphs = []
for p in (0.3, 0.7):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=graphs[0][0].pool() if graphs else None):
        noise = torch.rand_like(x)
        y = torch.nn.functional.dropout(x, p) * noise + torch.randn(1 << 20, device="cuda")
    graphs.append((graph, y))


def run(seed, churn):
    torch.cuda.manual_seed(seed)
    r, out = rng(churn), []
    for step in range(12):
        graph, y = graphs[step % 2]
        graph.replay()
        out.append(y.clone())
        if churn:
            junk = [torch.full((r.randrange(1, 8 << 20),), float("nan"), device="cuda") for _ in range(5)]
            del junk[::2]
            if step % 4 == 1:
                torch.cuda.empty_cache()
            del junk
    return out


first = run(7, 0)
problems = []
for turn in range(1, 6):
    again, other = run(7, turn), run(7 + turn, turn)
    if not all(torch.equal(a, b) for a, b in zip(first, again)):
        problems.append(f"turn {turn}: the same seed drew other numbers")
    if any(torch.equal(a, b) for a, b in zip(first, other)):
        problems.append(f"turn {turn}: another seed drew the same numbers")
if any(torch.equal(first[k], first[k + 2]) for k in range(10)):
    problems.append("two replays drew the same numbers")
if not all(bool(torch.isfinite(a).all()) and abs(float(a.mean()) - 0.5) < 0.02 for a in first):
    problems.append("the numbers are not what was asked for")
done(not problems, "; ".join(problems[:3]) or "132 replays of two graphs, each as its seed says")
