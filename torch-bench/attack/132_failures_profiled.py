"""torch.profiler with profile_memory notes each request that fails, inside and outside of operators and in a backward
pass, beside every allocation and free."""
from common import *
from torch.profiler import ProfilerActivity, profile

g = start(limit=256 * MIB)
problems = []


def names(prof):
    return [event.name() for event in prof.profiler.kineto_results.events()]


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        torch.empty(GIB, dtype=torch.uint8, device="cuda")
        return grad


def fails(work):
    try:
        work()
        problems.append("a request that cannot be served was served")
    except torch.OutOfMemoryError:
        pass


def too_much():
    torch.empty(GIB, dtype=torch.uint8, device="cuda")


def in_backward():
    x = torch.ones(1000, device="cuda", requires_grad=True)
    Fails.apply(x).sum().backward()


ones = torch.ones(1000, device="cuda", requires_grad=True)
(ones * 2).sum().backward()
torch.cuda.synchronize()
for turn in range(3):
    before = torch.cuda.memory_stats()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        fails(too_much)
        fails(lambda: torch.zeros(GIB, dtype=torch.uint8, device="cuda"))
        fails(lambda: torch.cuda.caching_allocator_alloc(GIB))
        y = torch.empty(300, dtype=torch.uint8, device="cuda")
        del x, y
    after, seen = torch.cuda.memory_stats(), names(prof)
    failed = after["num_ooms"] - before["num_ooms"]
    if failed != 3:
        problems.append(f"{failed} failures were counted, not 3")
    if seen.count("[OutOfMemory]") != failed:
        problems.append(f"turn {turn}: the profiler noted {seen.count('[OutOfMemory]')} of {failed} failures")
    if seen.count("[memory]") < 4:
        problems.append(f"turn {turn}: the profiler noted {seen.count('[memory]')} of 4 allocations and frees")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        fails(in_backward)
    if names(prof).count("[OutOfMemory]") != 1:
        problems.append(f"turn {turn}: the profiler noted {names(prof).count('[OutOfMemory]')} failures in a backward pass, not 1")
problems += adds_up()
done(not problems, "; ".join(problems[:3]) or "every failure was noted")
