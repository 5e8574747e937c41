"""Memory that torch makes at its first use and keeps (cuBLAS's workspaces, the seeds of graphs) is made in a region
that then sleeps: products outside, and graphs of other regions, go on, with the same bits as before. (Gapless only)"""
from common import *

if NATIVE:
    skip("regions are Gapless'")
g = start()
torch.backends.cuda.matmul.allow_tf32 = False


def product(a):
    """Forward and backward, on this stream and in autograd's own thread."""
    a = a.detach().clone().requires_grad_()
    out = (a @ a).tanh() @ a
    out.sum().backward()
    return torch.stack([out.detach(), a.grad])


def captured(weight, seed):
    """A graph that multiplies and draws."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.rand(512, 512, device="cuda") @ weight
    torch.manual_seed(seed)
    graph.replay()
    return graph, y, y.clone()


with g.region("first"):
    weight = torch.randn(512, 512, device="cuda")
    product(weight)
    with torch.cuda.stream(torch.cuda.Stream()):
        product(weight)
    torch.cuda.synchronize()
    first = captured(weight, 1)
with g.region("second"):
    other = torch.randn(512, 512, device="cuda")
    second = captured(other, 2)
outside = torch.randn(768, 768, device="cuda")
before, problems = product(outside), []
for cycle in range(20):
    name, (graph, y, expected), seed = ("first", second, 2) if cycle % 2 else ("second", first, 1)
    g.sleep(name)
    if not torch.equal(product(outside), before):
        problems.append(f"cycle {cycle}: another product while {name} sleeps")
    torch.manual_seed(seed)
    graph.replay()
    if not torch.equal(y, expected):
        problems.append(f"cycle {cycle}: another replay while {name} sleeps")
    torch.cuda.synchronize()
    g.wake(name)
    torch.cuda.empty_cache()
done(not problems, problems[0] if problems else "20 cycles, every product and replay as before")
