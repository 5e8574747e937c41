"""Several threads run backward passes at once, over graphs of their own and over one that they share, with parts of the
graph on side streams and hooks that hand gradients to another thread, which frees them: all gradients are those of one
pass after the other, bit for bit."""
import gc
import queue
import threading

from common import *

g = start(limit=4 * GIB)
torch.manual_seed(146)
torch.backends.cuda.matmul.allow_tf32 = False
problems, rubbish, r = [], queue.Queue(), rng(146)
sides = [torch.cuda.Stream() for _ in range(4)]
weights = [torch.randn(192, 192, device="cuda") / 14 for _ in range(6)]
inputs = [torch.randn(256, 192, device="cuda") for _ in range(4)]
torch.cuda.synchronize()


def frees():
    """Drops what others hand over, in cycles that the collector has to find."""
    held = []
    while True:
        item = rubbish.get()
        if item is None:
            return
        loop = [item]
        loop.append(loop)
        held.append(loop)
        if len(held) > 10:
            held.clear()
            gc.collect()


def loss(k, params, hand_over):
    """A chain, every other product of which runs on a side stream."""
    x, main = inputs[k], torch.cuda.current_stream()
    for at, w in enumerate(params):
        if at % 2:
            sides[k].wait_stream(main)
            with torch.cuda.stream(sides[k]):
                y = torch.tanh(x @ w)
            main.wait_stream(sides[k])
            x.record_stream(sides[k])
            y.record_stream(main)
        else:
            y = torch.sin(x @ w)
        if hand_over and y.requires_grad:
            y.register_hook(lambda grad: rubbish.put(grad * 1))
        x = y
    return x.square().mean()


def gradients(k, hand_over):
    params = [w.clone().requires_grad_() for w in weights]
    loss(k, params, hand_over).backward()
    return [p.grad for p in params]


alone = [gradients(k, False) for k in range(4)]
torch.cuda.synchronize()
alone = [[grad.cpu() for grad in grads] for grads in alone]
collector = threading.Thread(target=frees, daemon=True)
collector.start()


def worker(k, seed):
    try:
        mine = rng(seed)
        for turn in range(12):
            junk = [ints(log_uniform(mine, 512, 8 * MIB)).fill_(-1) for _ in range(mine.randrange(5))]
            grads = gradients(k, True)
            torch.cuda.current_stream().synchronize()
            if not all(torch.equal(grad.cpu(), right) for grad, right in zip(grads, alone[k])):
                problems.append(f"thread {k}, turn {turn}: other gradients")
                return
            del junk, grads
    except BaseException as error:
        problems.append(f"thread {k}: {type(error).__name__}: {str(error)[:120]}")


threads = [threading.Thread(target=worker, args=(k, 1460 + k)) for k in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
# One graph, walked by four threads; each keeps its own gradients.
params = [w.clone().requires_grad_() for w in weights]
total, kept = loss(0, params, False), [None] * 4
torch.cuda.synchronize()


def walks(k):
    try:
        for _ in range(6):
            kept[k] = [grad.clone() for grad in torch.autograd.grad(total, params, retain_graph=True)]
        torch.cuda.current_stream().synchronize()
    except BaseException as error:
        problems.append(f"walker {k}: {type(error).__name__}: {str(error)[:120]}")


threads = [threading.Thread(target=walks, args=(k,)) for k in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
torch.cuda.synchronize()
for k in range(4):
    if kept[k] is None or not all(torch.equal(grad.cpu(), right) for grad, right in zip(kept[k], alone[0])):
        problems.append(f"walker {k} has other gradients")
rubbish.put(None)
collector.join(30)
problems += adds_up()
done(not problems, "; ".join(problems[:3]) or "four threads, twelve turns; one graph walked 24 times")
