"""Programs that live with out-of-memory errors as trainers do: searches for a batch size, errors in custom functions,
hooks and recomputation, tracebacks that hold tensors, observers. All come back to what they held, and go on."""
import gc
import re
import traceback

from common import *

from torch.utils.checkpoint import checkpoint

g = start(limit=1 * GIB)
gc.disable()  # what comes back does so without a collection
problems, seen, heard = [], 0, []
torch._C._cuda_attach_out_of_memory_observer(lambda device, size, total, free: heard.append((device, size, total, free)))
warm = torch.randn(64, 64, device="cuda", requires_grad=True)
(warm @ warm).sum().backward()
warm.grad = None
torch.cuda.synchronize()


def says(ok, text):
    if not ok:
        problems.append(text)


def is_memory(error):
    """As accelerate and Lightning ask."""
    text = error.args[0] if len(error.args) == 1 else ""
    return isinstance(error, RuntimeError) and " out of memory." in text and "CUDA" in text and isinstance(error, torch.cuda.OutOfMemoryError)


def ooms():
    return torch.cuda.memory_stats()["num_ooms"]


def expect(name, run, base):
    """Runs what must fail once; afterwards everything is as before."""
    global seen
    count, calls = ooms(), len(heard)
    try:
        run()
        says(False, f"{name}: it fits")
    except RuntimeError as error:
        says(is_memory(error), f"{name}: {type(error).__name__} {str(error)[:80]}")
        says(re.search(r"Tried to allocate \d+\.\d\d [KMG]iB", str(error)) is not None, f"{name}: no size in {str(error)[:80]}")
        says("GPU 0 has a total capacity of" in str(error), f"{name}: no capacity")
        traceback.format_exc()
    says(ooms() == count + 1, f"{name}: {ooms() - count} failures counted")
    says(len(heard) == calls + 1 and heard[-1][0] == 0 and heard[-1][1] > 0, f"{name}: the observer heard {heard[calls:]}")
    torch.cuda.synchronize()
    if name == "recomputed":
        gc.collect()  # torch's own objects refer to each other there
    end = time.monotonic() + 2
    while torch.cuda.memory_allocated() != base and time.monotonic() < end:
        time.sleep(0.002)  # threads of autograd let go a little later
    says(torch.cuda.memory_allocated() == base, f"{name}: {torch.cuda.memory_allocated() - base} bytes stay")
    seen += 1


class Hungry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.save_for_backward(x)
        ctx.backward = backward
        room = torch.empty(forward, dtype=torch.uint8, device="cuda")
        del room
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        room = torch.empty(ctx.backward, dtype=torch.uint8, device="cuda")
        del room
        return grad * 2, None, None


x = torch.ones(1 << 20, device="cuda", requires_grad=True)
base = torch.cuda.memory_allocated()
two = 2 * GIB


def deep(level):
    """Frames that hold tensors when it fails."""
    held = ints(40 * MIB).fill_(level)
    return deep(level + 1) + int(held[0])


def hooked():
    y = x * 3
    y.register_hook(lambda grad: torch.empty(two, dtype=torch.uint8, device="cuda")[:1])
    y.sum().backward()


for turn in range(5):
    expect("recursion", lambda: deep(0), base)
    expect("forward", lambda: Hungry.apply(x, two, 1), base)
    expect("backward", lambda: Hungry.apply(x, 1, two).sum().backward(), base)
    expect("hook", hooked, base)
    expect("recomputed", lambda: checkpoint(lambda z: Hungry.apply(z, 1, two), x, use_reentrant=False).sum().backward(), base)
    # And the same without the failure.
    Hungry.apply(x, 300 * MIB, 300 * MIB).sum().backward()
    says(bool((x.grad == 2).all()), "a gradient is wrong after a failure")
    x.grad = None
    kept = [fill(ints(48 * MIB), k) for k in range(12)]
    expect("beside live ones", lambda: torch.empty(700 * MIB, dtype=torch.uint8, device="cuda"), torch.cuda.memory_allocated())
    says(sum(int(wrong(k, at)) for at, k in enumerate(kept)) == 0, "live tensors are spoilt by a failure")
    del kept
    # A search as accelerate's: halve until it fits, in the handler of the error.
    size, tries = 4096, 0
    while True:
        batch = None
        try:
            batch = torch.ones(size, 1 << 18, device="cuda")
            total = float((batch * 2).sum(1)[0])
            break
        except RuntimeError as error:
            says(is_memory(error), "the search met another error")
        torch.cuda.empty_cache()
        size, tries = size // 2, tries + 1
    says(size == 256 and total == 2 * (1 << 18), f"the search ended at {size} with {total}")
    del batch
torch.cuda.synchronize()
says(torch.cuda.memory_allocated() == base, "something stays in the end")
problems += adds_up()
done(not problems, "; ".join(problems[:4]) or f"{seen} failures, {len(heard)} heard, nothing stays")
