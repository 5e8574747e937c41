"""Hooks that raise in the middle of backward passes, saved tensors whose hooks raise, checkpoints that stop early,
custom functions that fail, frozen parts, second derivatives and anomaly mode: after each, in threads too, everything
that the pass held is free again, and the next pass gives the gradients of the first."""
import gc
import threading

from common import *
from torch.utils.checkpoint import checkpoint

g = start(limit=1 * GIB)
problems, r = [], rng(172)


class Mine(Exception):
    pass


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, when):
        ctx.when = when
        ctx.save_for_backward(x, x * 2)
        if when == "forward":
            raise Mine("forward")
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        if ctx.when == "backward":
            torch.empty(3 * MIB, device="cuda")
            raise Mine("backward")
        return grad * (y / x), None


def model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(6)]).cuda()


def raises(*_):
    raise Mine("of a hook")


def once(way, net, x):
    """One pass that fails by way of `way`."""
    handles = []
    try:
        if way == "full hook":
            handles.append(net[2].register_full_backward_hook(raises))
        elif way == "tensor hook":
            h = net[:3](x)
            h.register_hook(raises)
            net[3:](h).sum().backward()
            return
        elif way == "pack":
            with torch.autograd.graph.saved_tensors_hooks(raises, lambda t: t):
                net(x).sum().backward()
            return
        elif way == "unpack":
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.to("cpu", non_blocking=False), raises):
                net(x).sum().backward()
            return
        elif way == "checkpoint":
            handles.append(net[1].register_full_backward_hook(raises))
            h = checkpoint(net[:3], x, use_reentrant=False)
            net[3:](h).sum().backward()
            return
        elif way == "checkpoint, old":
            x = x.clone().requires_grad_()
            h = checkpoint(net[:3], x, use_reentrant=True)
            handles.append(net[1].register_full_backward_hook(raises))
            net[3:](h).sum().backward()
            return
        elif way in ("forward", "backward"):
            net[3:](Fails.apply(net[:3](x), way)).sum().backward()
            return
        elif way == "accumulate":
            handles.append(net[4][0].weight.register_post_accumulate_grad_hook(raises))
        elif way == "anomaly":
            with torch.autograd.detect_anomaly(check_nan=False):
                h = Fails.apply(net[:3](x), "backward")
                net[3:](h).sum().backward()
            return
        elif way == "second derivative":
            x = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            grad.register_hook(raises)
            (grad * grad).sum().backward()
            return
        elif way == "memory":
            net(x.repeat(1, 1)).sum().register_hook(lambda grad: torch.empty(4 * GIB, dtype=torch.uint8, device="cuda"))
            loss = net(x).sum()
            loss.register_hook(lambda grad: [torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")] and grad)
            loss.backward()
            return
        net(x).sum().backward()
    finally:
        for handle in handles:
            handle.remove()


WAYS = ["full hook", "tensor hook", "pack", "unpack", "checkpoint", "checkpoint, old", "forward", "backward", "accumulate",
        "anomaly", "second derivative", "memory"]  # fmt: skip


def work(seed, turns):
    net, x = model(seed), torch.randn(512, 256, device="cuda")
    net(x).sum().backward()
    first = [p.grad.clone() for p in net.parameters()]
    for p in net.parameters():
        p.grad = None
    for turn in range(turns):
        way = WAYS[(turn + seed) % len(WAYS)]
        try:
            once(way, net, x)
            problems.append(f"{way}: nothing was raised")
        except (Mine, torch.OutOfMemoryError) as error:
            if isinstance(error, torch.OutOfMemoryError) != (way == "memory"):
                problems.append(f"{way}: {type(error).__name__}")
        except RuntimeError as error:
            problems.append(f"{way}: {str(error).splitlines()[0][:100]}")
        for p in net.parameters():
            p.grad = None
        net(x).sum().backward()
        if not all(torch.allclose(p.grad, f, rtol=1e-3, atol=1e-3) for p, f in zip(net.parameters(), first)):
            problems.append(f"{way}: other gradients after it")
        for p in net.parameters():
            p.grad = None
    torch.cuda.synchronize()


work(0, len(WAYS))
gc.collect()
torch.cuda.synchronize()
base = torch.cuda.memory_allocated()
work(1, 2 * len(WAYS))
gc.collect()
torch.cuda.synchronize()
if torch.cuda.memory_allocated() != base:
    problems.append(f"{torch.cuda.memory_allocated() - base} bytes stay")
threads = [threading.Thread(target=work, args=(k, len(WAYS))) for k in range(3)]
for t in threads:
    t.start()
for t in threads:
    t.join(80)
gc.collect()
torch.cuda.synchronize()
problems += adds_up()
done(not problems, f"{len(problems)}: " + "; ".join(problems[:3]) if problems else f"{6 * len(WAYS)} passes that failed")
