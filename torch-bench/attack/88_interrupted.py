"""A signal handler that raises, as timeouts and Ctrl-C do, at any point of a program that allocates, frees, runs out of
memory and empties its cache: nothing is lost, and no byte of what is kept changes."""
import gc
import signal

from common import *

g = start(limit=1 * GIB)
r, kept, cut, steps, mistakes = rng(88), {}, 0, 0, 0
side = torch.cuda.Stream()
int(wrong(fill(ints(MIB), 3), 3))


class Timeout(Exception):
    pass


armed = False


def ring(number, frame):
    if armed:
        raise Timeout


def work():
    """One thing of many; it may be cut off anywhere in it."""
    act = r.random()
    if act < 0.5:
        mark = r.randrange(1 << 18)
        try:
            x = fill(ints(log_uniform(r, 512, 24 * MIB)), mark)
        except torch.OutOfMemoryError:
            kept.clear()
            return
        kept[mark] = x  # at once, or not at all
    elif act < 0.85 and len(kept) > 12:
        x = kept.pop(r.choice(list(kept)))
        if act < 0.6:
            x.record_stream(side)
    elif act < 0.9:
        try:
            torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
    elif act < 0.93:
        torch.cuda.empty_cache()
    elif act < 0.998:
        torch.cuda.memory_stats()
    else:
        torch.cuda.memory_snapshot()  # not often: torch 2.11 drops a reference to True each time
    if sum(x.numel() for x in list(kept.values())) * 4 > 600 * MIB:
        kept.clear()


signal.signal(signal.SIGALRM, ring)
end = time.monotonic() + 6
while time.monotonic() < end:
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, r.uniform(0.0005, 0.006))
        for _ in range(40):
            work()
            steps += 1
        armed = False
    except Timeout:
        armed = False
        cut += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    if cut % 40 == 39:
        mistakes += sum(int(wrong(x, mark)) for mark, x in kept.items())
signal.setitimer(signal.ITIMER_REAL, 0)
mistakes += sum(int(wrong(x, mark)) for mark, x in kept.items())
problems = adds_up()
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
held = sum(-(-x.numel() * 4 // 512) * 512 for x in kept.values())
more = torch.cuda.memory_allocated() - held
if not 0 <= more <= 96 * MIB:
    problems.append(f"{more} bytes allocated beside what is kept")
kept.clear()
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = torch.cuda.memory_allocated()
if left > 64 * MIB:
    problems.append(f"{left} bytes are left")
ok = mistakes == 0 and not problems and cut > 20
done(ok, f"{steps} steps, cut off {cut} times, {mistakes} wrong; {problems[:2]}")
