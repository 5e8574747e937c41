"""Finalizers, weakref callbacks, gc callbacks and a signal handler that allocate and free inside other requests change
no bytes of other tensors."""
import gc
import signal
import weakref

from common import *

g = start(limit=2 * GIB)
r, pot, counts, mistakes = rng(50), [], {"del": 0, "weak": 0, "gc": 0, "signal": 0}, []
quiet = False


def stir(who):
    """Frees a block or two, and makes others; nothing that raises."""
    if quiet:
        return
    counts[who] += 1
    while len(pot) > 24:
        pot.pop(r.randrange(24))  # another may be here meanwhile
    mark = r.randrange(1 << 18)
    pot.append((fill(ints(log_uniform(r, 512, 8 * MIB)), mark), mark))


class Holder:
    def __init__(self):
        self.me = self  # only gc ends it
        self.data = ints(64 * KIB)

    def __del__(self):
        stir("del")


class Plain:
    pass


def on_gc(phase, info):
    stir("gc")


def on_signal(number, frame):
    stir("signal")


gc.callbacks.append(on_gc)
gc.set_threshold(60, 3, 3)
signal.signal(signal.SIGALRM, on_signal)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
refs, ours = [], []
end = time.monotonic() + 5
steps = 0
while time.monotonic() < end:
    Holder()
    plain = Plain()
    plain.data = ints(2 * MIB)
    refs = [ref for ref in refs if ref() is not None][-50:]
    refs.append(weakref.ref(plain, lambda _: stir("weak")))
    del plain
    mark = r.randrange(1 << 18)
    ours.append((fill(ints(log_uniform(r, 512, 24 * MIB)), mark), mark))
    if len(ours) > 20:
        x, mark = ours.pop(r.randrange(20))
        mistakes.append(wrong(x, mark))
        del x
    if steps % 50 == 49:
        try:
            torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
        mistakes = [sum(mistakes)]
    if steps % 200 == 199:
        torch.cuda.empty_cache()
    steps += 1
signal.setitimer(signal.ITIMER_REAL, 0)
quiet = True
gc.callbacks.clear()
gc.collect()
bad = sum(int(m) for m in mistakes) + sum(int(wrong(x, m)) for x, m in ours + pot)
done(bad == 0 and all(counts.values()), f"{steps} steps, {bad} wrong elements, calls {counts}")
