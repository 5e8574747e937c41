"""Copies that torch makes when they are written first (_lazy_clone), of memory of pools, graphs, other streams and
threads, with originals that go before or after: each has its own bytes in the end, statistics count a copy when it is
made, and everything comes back."""
import gc
import threading

from common import *

start()
if not hasattr(torch, "_lazy_clone"):
    skip("this torch has no lazy copies")
problems = []


def check(x, seed, what):
    bad = int(wrong(x, seed))
    if bad:
        problems.append(f"{what}: {bad} values")


base = torch.cuda.memory_allocated()
random = rng(5)
side = torch.cuda.Stream()
for turn in range(40):
    pool = torch.cuda.MemPool()
    where = random.choice(["plain", "pool", "stream"])
    size = random.choice([40 * KIB, 3 * MIB, 9 * MIB])
    if where == "pool":
        with torch.cuda.use_mem_pool(pool):
            x = fill(ints(size), turn)
    elif where == "stream":
        with torch.cuda.stream(side):
            x = fill(ints(size), turn)
        torch.cuda.current_stream().wait_stream(side)
    else:
        x = fill(ints(size), turn)
    before = torch.cuda.memory_allocated()
    copies = [torch._lazy_clone(x) for _ in range(3)]
    if torch.cuda.memory_allocated() != before:
        problems.append(f"{where}: lazy copies took {torch.cuda.memory_allocated() - before} bytes")
    written = copies.pop()
    written.add_(1)
    if torch.cuda.memory_allocated() < before + size:
        problems.append(f"{where}: a written copy took {torch.cuda.memory_allocated() - before} bytes")
    if random.random() < 0.5:
        del x
        other = copies.pop()
    else:
        other, x = copies.pop(), None

    def in_a_thread(y=other):
        y.add_(2)
        check(y, turn + 2, f"{where}, in a thread")

    thread = threading.Thread(target=in_a_thread)
    del other
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    last = copies.pop()
    with torch.cuda.stream(side):
        last.record_stream(side)
        last.add_(3)
    torch.cuda.synchronize()
    check(written, turn + 1, f"{where}, written")
    check(last, turn + 3, f"{where}, the last")
    del written, last, in_a_thread, thread, copies, pool
    x = None
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
if torch.cuda.memory_allocated() > base:
    problems.append(f"{torch.cuda.memory_allocated() - base} bytes are held")
problems += adds_up()
done(not problems, f"{len(problems)} problems: {problems[:3]}")
