"""Eight threads that allocate, free across threads, empty the cache, collect garbage and ask for statistics and
snapshots, with Python switching between them all the time, keep their bytes and end with an empty cache."""
import gc
import queue
import sys
import threading

from common import *

g = start(limit=3 * GIB)
sys.setswitchinterval(1e-6)
stop, errors, wrongs, counts = threading.Event(), [], [], []
boxes = [queue.SimpleQueue() for _ in range(8)]


class Cycle:
    """Only the collector frees it, in whichever thread that runs."""

    def __init__(self, x):
        self.me, self.x = self, x


def worker(k):
    r, count, kept = rng(890 + k), 0, []
    try:
        s = torch.cuda.Stream()
        with torch.cuda.stream(s):
            while not stop.is_set():
                act = r.random()
                if act < 0.6:
                    mark = r.randrange(1 << 18)
                    kept.append((fill(ints(log_uniform(r, 512, 16 * MIB)), mark), mark))
                elif act < 0.7 and kept:
                    x, mark = kept.pop(r.randrange(len(kept)))
                    s.synchronize()
                    boxes[r.randrange(8)].put((x, mark))
                elif act < 0.8:
                    Cycle(ints(log_uniform(r, 512, 4 * MIB)))
                elif act < 0.88:
                    try:
                        x, mark = boxes[k].get_nowait()
                        wrongs.append(int(wrong(x, mark)))
                    except queue.Empty:
                        pass
                elif act < 0.92:
                    torch.cuda.empty_cache()
                elif act < 0.94:
                    gc.collect(1)
                elif act < 0.995:
                    stats = torch.cuda.memory_stats()
                    if stats["allocated_bytes.all.current"] > stats["reserved_bytes.all.current"]:
                        errors.append("more allocated than reserved")
                else:  # not often: torch 2.11 drops a reference to True each time
                    total = sum(seg["total_size"] for seg in torch.cuda.memory_snapshot())
                    if total > 3 * GIB + 64 * MIB:
                        errors.append(f"a snapshot of {total} bytes")
                while len(kept) > 10:
                    x, mark = kept.pop(r.randrange(len(kept)))
                    wrongs.append(int(wrong(x, mark)))
                x = None
                count += 1
            s.synchronize()
    except BaseException as error:
        errors.append(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")
        stop.set()
    counts.append(count)


threads = [threading.Thread(target=worker, args=(k,)) for k in range(8)]
for t in threads:
    t.start()
stop.wait(6)
stop.set()
for t in threads:
    t.join(60)
hang = sum(t.is_alive() for t in threads)
sys.setswitchinterval(0.005)
for box in boxes:
    while not box.empty():
        x, mark = box.get()
        wrongs.append(int(wrong(x, mark)))
        x = None
boxes.clear()
problems = adds_up()
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
left, allocated = torch.cuda.memory_reserved() >> 20, torch.cuda.memory_allocated() >> 20
ok = not errors and not hang and sum(wrongs) == 0 and not problems and left <= 48
text = f"{sum(counts)} acts, {len(wrongs)} blocks, {sum(wrongs)} wrong, {hang} hang, {allocated} of {left} MiB left"
done(ok, f"{text}; {errors[:1]} {problems[:1]}")
