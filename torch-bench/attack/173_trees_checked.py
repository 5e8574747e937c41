"""Compiled graph trees with torch's own checks of their memory turned on (every path, live outputs, addresses),
through branches, changing shapes, kept outputs, training, inputs that are written, resets in the middle and other
threads' requests: no check fails, values are the eager ones, and memory comes back."""
import gc
import threading

from common import *

g = start(limit=4 * GIB)
try:
    import torch._inductor.config as config
    import torch._inductor.cudagraph_trees as trees
except ImportError as error:
    skip(f"no compiler: {error}")
config.triton.slow_path_cudagraph_asserts = True
config.triton.fast_path_cudagraph_asserts = True
problems, mistakes, r = [], 0, rng(173)
stop = threading.Event()


def beside():
    """Requests of another thread, on a stream of its own, all the while."""
    mine, rr = torch.cuda.Stream(), rng(1730)
    with torch.cuda.stream(mine):
        while not stop.is_set():
            x = torch.empty(log_uniform(rr, 512, 20 * MIB), dtype=torch.uint8, device="cuda")
            x.zero_()
            del x
            time.sleep(0.001)


def first(x):
    return (x * 2 + 1).sum(1), x.flip(0) + 3


def second(x):
    y = x.cumsum(0)
    return y - x, (y * y).amax(1)


def grows(x):
    return torch.cat([x, x + 1, x + 2]), x.mean()


def compiled(f):
    return torch.compile(f, mode="reduce-overhead", dynamic=False)


def close(a, b):
    return torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-3)


def reset():
    torch._dynamo.reset()
    gc.collect()
    torch.cuda.synchronize()


try:
    functions = [(f, compiled(f)) for f in (first, second, grows)]
    inputs = [torch.randn(rows, 257, device="cuda") for rows in (64, 1000)]
    functions[0][1](inputs[0])
    functions[0][1](inputs[0])
except Exception as error:
    skip(f"no compiler: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
reset()
base, turns, end = None, 0, time.monotonic() + 40
for turn in range(3):
    functions = [(f, compiled(f)) for f in (first, second, grows)]
    thread = threading.Thread(target=beside)
    if turn == 1:
        thread.start()
    try:
        for step in range(30):
            torch.compiler.cudagraph_mark_step_begin()
            x, kept = inputs[r.randrange(2)], []
            for _ in range(r.randrange(1, 4)):  # a path through the tree
                eager, fast = functions[r.randrange(3)]
                outs, want = fast(x), eager(x)
                mistakes += sum(not close(a, b) for a, b in zip(outs, want))
                if r.random() < 0.5:
                    kept.append((outs[0], want[0]))
                del outs, want
            mistakes += sum(not close(a, b) for a, b in kept)
            del kept
            turns += 1
            if step % 10 == 9:
                torch.cuda.empty_cache()
                inputs[1].add_(1)
        # Training. Gradients are the graph's own outputs, so they are added up elsewhere before the next step.
        torch.manual_seed(turn)
        net = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
        twin = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 64)).cuda()
        twin.load_state_dict(net.state_dict())
        fast = torch.compile(net, mode="reduce-overhead")
        sums, twin_sums = ([torch.zeros_like(p) for p in net.parameters()] for _ in range(2))
        for step in range(6):
            batch = torch.randn(96, 128, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            fast(batch).square().mean().backward()
            twin(batch).square().mean().backward()
            for one, other in ((net, sums), (twin, twin_sums)):
                for p, total in zip(one.parameters(), other):
                    total += p.grad
                    p.grad = None
        mistakes += sum(not close(a, b) for a, b in zip(sums, twin_sums))
        del net, twin, fast, batch, sums, twin_sums, one, other, p, total
    except Exception as error:
        problems.append(f"turn {turn}: {type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}")
    stop.set()
    if turn == 1:
        thread.join(20)
    x = eager = fast = functions = outs = want = None
    reset()
    torch.cuda.empty_cache()
    left = torch.cuda.memory_allocated()
    if base is not None and left > base:
        problems.append(f"turn {turn}: {left - base} bytes stay")
    base = left if base is None else base
    if problems or time.monotonic() > end:
        break
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"{turns} steps with torch's checks, {mistakes} wrong results")
