"""make_graphed_callables for several shapes must train to the same values as the eager module."""
import copy

from common import *

g = start(limit=3 * GIB)
torch.manual_seed(44)
torch.backends.cuda.matmul.allow_tf32 = False


def module():
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).cuda()


eager = [module() for _ in range(3)]
graphed = copy.deepcopy(eager)
shapes = (64, 17, 200)
samples = tuple((torch.randn(rows, 256, device="cuda", requires_grad=True),) for rows in shapes)
graphed = torch.cuda.make_graphed_callables(tuple(graphed), samples)
ways = [torch.optim.SGD([p for m in ms for p in m.parameters()], lr=0.01) for ms in (eager, graphed)]
r, worst = rng(44), 0.0
for step in range(30):
    data = [torch.randn(rows, 256, device="cuda") for rows in shapes]
    losses = []
    for modules, way in zip((eager, graphed), ways):
        way.zero_grad(set_to_none=True)
        total = torch.zeros((), device="cuda")
        for k in range(3):
            x = data[k].clone().requires_grad_()
            total = total + (modules[k](x) * (k + 1)).pow(2).mean()
            junk = torch.full((r.randrange(1, 4 << 20),), float("nan"), device="cuda")
            del junk
        total.backward()
        way.step()
        losses.append(float(total))
    worst = max(worst, abs(losses[0] - losses[1]) / abs(losses[0]))
    if step % 5 == 0:
        torch.cuda.empty_cache()
apart = max(
    float((p - q).abs().max()) for a, b in zip(eager, graphed) for p, q in zip(a.parameters(), b.parameters())
)
done(worst < 1e-4 and apart < 1e-4, f"30 steps of three shapes: losses apart by {worst:.2e}, parameters {apart:.2e}")
