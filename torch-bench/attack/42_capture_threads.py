"""While one thread captures in thread_local or relaxed mode, others may allocate, free, wait and read right values."""
import threading

from common import *

g = start(limit=3 * GIB)
stop, wrongs, errors, rounds = threading.Event(), [], [], []


def worker(seed):
    r, mine, kept, count = rng(seed), torch.cuda.Stream(), [], 0
    try:
        with torch.cuda.stream(mine):
            while not stop.is_set():
                mark = r.randrange(1 << 18)
                kept.append((fill(ints(log_uniform(r, 512, 8 * MIB)), mark), mark))
                if len(kept) > 12:
                    x, mark = kept.pop(r.randrange(12))
                    wrongs.append(int(wrong(x, mark)))
                    count += 1
                    del x
        mine.synchronize()
    except BaseException as error:
        errors.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    rounds.append(count)


threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(4)]
for t in threads:
    t.start()
x = torch.zeros(1 << 18, device="cuda")
(x + 1) * 1 == 2  # kernels are loaded before
side, problem, captures = torch.cuda.Stream(), "", 0
kept = []
end = time.monotonic() + 6
while time.monotonic() < end and not problem and not errors:
    graph = torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode=("thread_local", "relaxed")[captures % 2])
        y = x + 1
        for i in range(30):
            y = y * 1 + 1
            if i % 10 == 0:
                time.sleep(0.002)  # the others get on meanwhile
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(side)
    kept.append((graph, y))
    captures += 1
    x.fill_(captures)
    for graph, y in kept:
        graph.replay()
        if not bool((y == captures + 31).all()):
            problem = f"capture {captures}: a replay gave {float(y[0])}, not {captures + 31}"
    if len(kept) > 4:
        kept.pop(0)
stop.set()
for t in threads:
    t.join(30)
if any(t.is_alive() for t in threads):
    done(False, "a thread hangs")
ok = not problem and not errors and sum(wrongs) == 0 and captures > 2
done(ok, f"{captures} captures, {sum(rounds)} blocks of four threads, {sum(wrongs)} wrong; {problem} {errors[:2]}")
