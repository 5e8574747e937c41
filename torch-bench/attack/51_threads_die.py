"""Sixteen threads that switch all the time and die, whose tensors others read and free after them, see right values."""
import queue
import sys
import threading

from common import *

g = start(limit=3 * GIB)
sys.setswitchinterval(1e-5)
left, bad, errors, lives = queue.Queue(60), [], [], [0]
end = time.monotonic() + 6


def life(seed):
    """A short one: some blocks on a stream of its own, some of which it leaves behind."""
    try:
        r = rng(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = []
            for step in range(12):
                mark = r.randrange(1 << 18)
                mine.append((fill(ints(log_uniform(r, 512, 6 * MIB)), mark), mark))
                if len(mine) > 4:
                    x, mark = mine.pop(r.randrange(4))
                    bad.append(int(wrong(x, mark)))
                    del x
            event = torch.cuda.current_stream().record_event()
        for x, mark in mine[:3]:
            left.put((x, mark, event), timeout=30)
        if seed % 11 == 0:
            torch.cuda.empty_cache()
        lives[0] += 1
    except BaseException as error:
        errors.append(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")


def keeper(k):
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            while True:
                item = left.get(timeout=30)
                if item is None:
                    return
                x, mark, event = item
                torch.cuda.current_stream().wait_event(event)
                n = wrong(x, mark)
                x.record_stream(torch.cuda.current_stream())
                del x, item
                bad.append(int(n))
    except BaseException as error:
        errors.append(f"keeper: {type(error).__name__}: {str(error).splitlines()[0][:120]}")


keepers = [threading.Thread(target=keeper, args=(k,)) for k in range(3)]
for t in keepers:
    t.start()
seed, alive = 0, []
while time.monotonic() < end and not errors:
    alive = [t for t in alive if t.is_alive()]
    while len(alive) < 13:
        seed += 1
        alive.append(threading.Thread(target=life, args=(seed,)))
        alive[-1].start()
    time.sleep(0.001)
for t in alive:
    t.join(30)
for t in keepers:
    left.put(None)
for t in keepers:
    t.join(30)
if any(t.is_alive() for t in alive + keepers):
    done(False, "a thread hangs")
torch.cuda.synchronize()
problems = adds_up()
ok = not errors and sum(bad) == 0 and not problems
done(ok, f"{lives[0]} threads lived, {len(bad)} blocks read, {sum(bad)} wrong elements; {errors[:2]} {problems}")
