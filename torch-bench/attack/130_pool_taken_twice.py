"""Threads that want one MemPool at the same time: torch refuses all but the first, and a refused thread tries again.
What a thread asks for in its scope lies in the pool, and what it asks for after it does not, whoever came between."""
import threading

from common import *

g = start(limit=3 * GIB)
many_snapshots()
problems, refused, served, mistakes = [], [0], [0], []
lock = threading.Lock()


def says(ok, text):
    if not ok:
        with lock:
            problems.append(text)


def is_in(pool, x):
    segments = torch.cuda.memory_snapshot(pool.id)
    return any(s["address"] <= x.data_ptr() < s["address"] + s["total_size"] for s in segments)


# In this order: the second thread comes while the first has the pool, and the first leaves before the second.
pool, first, second, left = torch.cuda.MemPool(), threading.Event(), threading.Event(), threading.Event()


def comes_first():
    with torch.cuda.use_mem_pool(pool):
        first.set()
        second.wait(20)
        says(is_in(pool, ints(3 * MIB)), "the first thread's tensor is not in the pool that it has open")
    says(not is_in(pool, ints(3 * MIB)), "the first thread has left the pool, and gets memory of it")
    left.set()


def comes_second():
    first.wait(20)
    try:
        with torch.cuda.use_mem_pool(pool):
            second.set()
            left.wait(20)
            says(is_in(pool, ints(3 * MIB)), "the second thread's tensor is not in the pool that it has open")
    except RuntimeError:
        refused[0] += 1
    second.set()
    says(not is_in(pool, ints(3 * MIB)), "the second thread is outside, and gets memory of the pool")


threads = [threading.Thread(target=work) for work in (comes_first, comes_second)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
# As it comes: four threads, two pools.
pools, until = [torch.cuda.MemPool(), torch.cuda.MemPool()], time.monotonic() + 5


def worker(k):
    r, mine = rng(k), torch.cuda.Stream()
    with torch.cuda.stream(mine):
        while time.monotonic() < until and len(problems) < 5:
            pool, mark = pools[r.randrange(2)], r.randrange(1 << 18)
            try:
                with torch.cuda.use_mem_pool(pool):
                    x = fill(ints(log_uniform(r, 4 * KIB, 4 * MIB)), mark)
                    says(is_in(pool, x), "a tensor is not in the pool that its thread has open")
                    y = fill(ints(log_uniform(r, 4 * KIB, 4 * MIB)), mark + 1)
                    says(is_in(pool, y), "a second tensor is not in the pool that its thread has open")
            except RuntimeError as error:
                if "already recording" not in str(error):
                    says(False, str(error).splitlines()[0][:120])
                with lock:
                    refused[0] += 1
                continue
            z = fill(ints(log_uniform(r, 4 * KIB, 4 * MIB)), mark + 2)
            says(not any(is_in(p, z) for p in pools), "a tensor that was made outside is in a pool")
            wrongs = [wrong(x, mark), wrong(y, mark + 1), wrong(z, mark + 2)]
            del x, y, z
            with lock:
                mistakes.append(sum(int(w) for w in wrongs))
                served[0] += 1


threads = [threading.Thread(target=worker, args=(k,)) for k in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
torch.cuda.synchronize()
problems += adds_up()
ok = not problems and sum(mistakes) == 0 and served[0] > 0
done(ok, "; ".join(sorted(set(problems))[:3]) or f"{served[0]} scopes, {refused[0]} refused, {sum(mistakes)} wrong elements")
