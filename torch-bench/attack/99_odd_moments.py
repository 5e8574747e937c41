"""Gapless' own functions at odd moments: steps in hooks, threads, captures and before CUDA, late and second enable(),
budgets that close out of order, elastic tensors under graphs, shares of what goes. (Gapless only)"""
import subprocess
import sys
import textwrap
import threading
import warnings

from common import *

if NATIVE:
    skip("these functions are Gapless'")
import gapless as g

g.enable(limit=2 * GIB, oom_dir="off")
g.step()  # before CUDA
start(limit=2 * GIB)  # a second time, with the same options
r, problems, mistakes = rng(99), [], 0


def says(ok, text):
    if not ok:
        problems.append(text)


with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    says(g.enable(limit=1 * GIB, oom_dir="off"), "a second enable() is refused")
says(any("limit cannot be changed" in str(w.message) for w in warned), "other options are dropped in silence")
# Marks steps at odd moments, such as within a backward pass.
weight = torch.randn(1024, 1024, device="cuda", requires_grad=True)
weight.register_hook(lambda grad: g.step())
stop, errors = threading.Event(), []


def stepper():
    try:
        while not stop.is_set():
            g.step()
            g.available()
            g.stats()
    except BaseException as error:
        errors.append(repr(error)[:160])


thread = threading.Thread(target=stepper)
thread.start()
for step in range(40):
    x = fill(ints(log_uniform(r, 512, 24 * MIB)), step)
    with torch.inference_mode(step % 2 == 0):
        g.step()
        y = x + 1
    if step % 4 == 0:
        ((weight @ weight).relu() @ weight).sum().backward()
        weight.grad = None
    if step % 10 == 9:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            g.step()
            z = y + step
            g.trim()
            g.reserve("64MiB")
            g.step()
        graph.replay()
        mistakes += int(wrong(z, 2 * step + 1))
        del graph, z
    mistakes += int(wrong(y, step + 1))
    del x, y
stop.set()
thread.join(30)
problems += errors
# Budgets that close in another order than they opened, one by an exception, one in another thread.
one, two = g.budget("256MiB", tag="one"), g.budget("128MiB", tag="two")
one.__enter__()
two.__enter__()
a = ints(100 * MIB)
one.__exit__(None, None, None)
try:
    b = ints(100 * MIB)
    problems.append("the newest budget does not hold")
except torch.OutOfMemoryError as error:
    says("two" in str(error), "the error does not name the budget")
closer = threading.Thread(target=two.__exit__, args=(None, None, None))
closer.start()
closer.join()
b = ints(300 * MIB)
del a, b
figures = g.stats()
says(figures["gapless.budgets.two.live"] == 0 and figures["gapless.budgets.one.live"] == 0, "a budget is charged still")
# An elastic tensor that a graph writes and reads, grown and shrunk between replays.
cache = g.elastic((4096, 65536), torch.int32)  # 64 rows in a page
cache.grow(64)
row = torch.zeros(1, dtype=torch.int64, device="cuda")
full = cache.full
full[row] = 0
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    full.index_copy_(0, row, (row + 5).int().expand(1, 65536))
    seen = full.index_select(0, row).sum()
size = 64
for step in range(200):
    if r.random() < 0.3 and size < 4000:
        cache.grow(37)
        size += 37
    elif r.random() < 0.2 and size > 200:
        cache.shrink(101)
        size -= 101
    at = r.randrange(size)
    row.fill_(at)
    graph.replay()
    mistakes += int(int(seen) != 65536 * (at + 5))
says(tuple(cache.tensor.shape) == (size, 65536), f"the elastic tensor has {tuple(cache.tensor.shape)}")
del graph, seen, full, cache
# A share outlives the tensors' names here; the reader is a process of its own.
w = fill(ints(24 * MIB), 77)
torch.cuda.synchronize()
handle = g.share({"w": w})
keep = w
del w
reader = f"""
import torch, gapless
gapless.enable(oom_dir="off")
found = gapless.attach({handle!r})["w"]
torch.cuda.synchronize()
want = torch.arange(77, 77 + found.numel(), dtype=torch.int32, device="cuda")
print("differ", int((found != want).sum()))
"""
late = """
import torch, gapless
x = torch.arange(1000, device="cuda")
try:
    print(gapless.enable(oom_dir="off"))
except gapless.GaplessError as error:
    y = x + 1
    print("late", "CUDA has already started" in str(error), gapless.enabled(), int(y.sum()) == 500500)
"""
for name, program, wanted in (("reader", reader, "differ 0"), ("late", late, "late True False True")):
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    last = child.stdout.strip().splitlines()[-1:] or child.stderr.strip().splitlines()[-1:]
    says(last == [wanted], f"{name}: {last}")
g.unshare(handle)
mistakes += int(wrong(keep, 77))
del keep
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or f"all as it should be, {mistakes} wrong")
