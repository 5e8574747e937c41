"""Gapless' own functions, called by finalizers and by signal handlers that come while Gapless' own functions run: in
budgets, regions that sleep and wake, handlers that are removed, elastic tensors, offload scopes, shares and questions.
No thread waits for itself, scopes close, and charges come back to nothing. (Gapless only)"""
import gc
import itertools
import signal
import threading

from common import *

try:
    import torch._dynamo  # torch's own first import of it is not for handlers of signals  # noqa: F401
except ImportError:
    pass
if NATIVE:
    skip("these functions are Gapless'")
g = start(limit=GIB)
problems, ran, numbers = [], {"finalizers": 0, "signals": 0}, itertools.count()
scope, place = g.budget("512MiB", tag="inner"), g.region("inner")
cache, second = g.elastic((1024, MIB), torch.uint8, page="2MiB"), g.elastic((64, MIB), torch.uint8, page="4MiB")
weights = [torch.ones(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(2)]
with g.region("kept"):
    asleep = torch.ones(5 * MIB, dtype=torch.uint8, device="cuda")
inside = [0]


def one_thing():
    """Something that a program may do when an object goes, or when a signal comes."""
    if inside[0] > 2:
        return
    inside[0] += 1
    try:
        turn = next(numbers) % 9
        if turn == 0:
            with scope:
                torch.empty(1000, device="cuda")
        elif turn == 1:
            g.on_pressure(lambda pressure: 0).remove()
        elif turn == 2:
            cache.resize(cache.size)
            second.resize((cache.size * 3) % 60)
        elif turn == 3:
            g.elastic((8, MIB), torch.uint8, page=f"{2 + 2 * (next(numbers) % 5)}MiB").grow(1)
        elif turn == 4:
            with place:
                torch.empty(2000, device="cuda")
        elif turn == 5:
            g.stats()
            g.regions()
        elif turn == 6:
            g.enable()
        elif turn == 7:
            with g.offload(min_size="1KiB"):
                (torch.ones(4000, device="cuda", requires_grad=True) * 2).exp().sum()
        else:
            g.sleep("other")
            g.wake("other")
    except (torch.OutOfMemoryError, g.GaplessError):
        pass
    except BaseException as error:
        problems.append(repr(error)[:200])
    finally:
        inside[0] -= 1


class Goes:
    def __init__(self):
        self.me = self

    def __del__(self):
        ran["finalizers"] += 1
        one_thing()


def on_signal(*_):
    ran["signals"] += 1
    one_thing()


with g.region("other"):
    other = torch.ones(MIB, dtype=torch.uint8, device="cuda")
# torch imports parts of itself on first use, which a handler must not come into.
with g.offload(min_size="1KiB"):
    (torch.ones(4000, device="cuda", requires_grad=True) * 2).exp().sum().backward()
signal.signal(signal.SIGALRM, on_signal)
watch = threading.Timer(60, lambda: (print("somebody waits for itself", flush=True), os.abort()))
watch.daemon = True
watch.start()
gc.set_threshold(5, 2, 2)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
for turn in range(150):
    waiting = [Goes() for _ in range(3)]
    del waiting
    with g.budget("600MiB", tag=f"outer{turn % 4}"), scope:
        handle = g.on_pressure(lambda pressure: 0)
        x = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    del x
    with place, g.region("second"):
        y = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    Goes()
    handle.remove()
    try:
        cache.resize(turn % 50)
        g.elastic((16, MIB), torch.uint8, page=f"{2 + 2 * (turn % 7)}MiB").grow(2)
        g.sleep("kept")
        Goes()
        g.wake("kept")
    except (torch.OutOfMemoryError, g.GaplessError):
        if g.is_asleep(asleep):
            g.wake("kept")
    with g.offload(min_size="1KiB"):
        (torch.ones(5000, device="cuda", requires_grad=True) * turn).exp().sum().backward()
    g.trim()
signal.setitimer(signal.ITIMER_REAL, 0)
gc.set_threshold(700, 10, 10)
gc.collect()
watch.cancel()
del y
torch.cuda.synchronize()
stats = g.stats()
for name in ("inner", "outer0", "outer1", "outer2", "outer3"):
    if stats.get(f"gapless.budgets.{name}.live"):
        problems.append(f"{stats[f'gapless.budgets.{name}.live']} bytes stay charged to {name}")
# Scopes are closed: new requests are charged to no budget, and belong to no region.
probe = torch.ones(3 * MIB, dtype=torch.uint8, device="cuda")
for found in g.regions():
    if not found.asleep:
        g.sleep(found.name)
if g.is_asleep(probe):
    problems.append("a region stayed open")
for found in [region.name for region in g.regions()]:
    g.wake(found)
if sum(g.stats().get(f"gapless.budgets.{name}.live", 0) for name in ("inner", "outer0", "outer1", "outer2", "outer3")):
    problems.append("a budget stayed open")
problems += adds_up()
for problem in problems[:6]:
    print(problem)
done(not problems and ran["finalizers"] > 100, f"{ran['finalizers']} finalizers and {ran['signals']} signals, {len(problems)} problems")
