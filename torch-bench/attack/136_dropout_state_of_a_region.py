"""torch keeps one state for the dropout of cuDNN's recurrent networks, from its first use to the end of the process. It
is made in a region here, which then sleeps: networks outside of the region go on, and the region wakes with its bytes.
(Gapless only)"""
from common import *

if NATIVE:
    skip("regions are Gapless'")
g = start(limit=4 * GIB)
if not torch.backends.cudnn.is_available():
    skip("no cuDNN here")
torch.manual_seed(136)
problems = []
outside = torch.nn.LSTM(64, 64, num_layers=2, dropout=0.5).cuda()
data = torch.randn(32, 16, 64, device="cuda")
with g.region("first"):
    inside = torch.nn.LSTM(64, 64, num_layers=2, dropout=0.5).cuda()
    kept = fill(ints(8 * MIB), 4)
    out, _ = inside(data)
    out.sum().backward()
    inside.zero_grad(set_to_none=True)
del out
torch.cuda.synchronize()


def trains(net):
    try:
        out, _ = net(data)
        out.square().sum().backward()
        grads = [p.grad for p in net.parameters()]
        torch.cuda.synchronize()
        if not all(bool(torch.isfinite(x).all()) for x in [out, *grads]):
            problems.append("a value is not finite")
        net.zero_grad(set_to_none=True)
        net.eval()
        with torch.no_grad():
            plain = net(data)[0]
        net.train()
        if torch.equal(plain, out):
            problems.append("there was no dropout")
    except Exception as error:
        problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")


for turn in range(3):
    trains(outside)
    g.sleep("first")
    trains(outside)
    if problems:
        break
    g.wake("first")
    trains(inside)
    mistakes = int(wrong(kept, 4))
    if mistakes:
        problems.append(f"{mistakes} wrong elements")
if not problems:
    problems += adds_up()
done(not problems, "; ".join(problems[:2]) or "three sleeps, all networks trained")
