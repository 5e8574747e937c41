"""Threads with MemPools of their own, in regions and budgets that open and close around and inside of each other, with
captures between, while regions sleep and wake: what a budget counts comes back to nothing, what is outside of a region
never sleeps, and every byte is right. (Gapless only)"""
import threading

from common import *

if NATIVE:
    skip("regions and budgets are Gapless'")
g = start(limit=3 * GIB)
problems, bad, lock = [], [], threading.Lock()
outside = [(fill(ints(size), k), k) for k, size in enumerate((600, 5 * MIB, 40 * MIB))]
torch.cuda.synchronize()


def says(ok, text):
    if not ok:
        with lock:
            problems.append(text)


def worker(k):
    r, mine = rng(1490 + k), torch.cuda.Stream()
    try:
        with torch.cuda.stream(mine):
            for turn in range(25):
                pool, live = torch.cuda.MemPool(), []
                with g.budget("1GiB", tag=f"thread{k}"):
                    for step in range(8):
                        mark = r.randrange(1 << 18)
                        if step % 2:
                            with torch.cuda.use_mem_pool(pool):
                                x = fill(ints(log_uniform(r, 512, 10 * MIB)), mark)
                        else:
                            x = fill(ints(log_uniform(r, 512, 10 * MIB)), mark)
                        live.append((x, mark))
                        del x
                    if turn % 5 == k:
                        try:
                            torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
                            says(False, "a request beyond a budget was served")
                        except torch.OutOfMemoryError:
                            pass
                wrongs = sum(int(wrong(x, mark)) for x, mark in live)
                with lock:
                    bad.append(wrongs)
                live = x = pool = None
    except BaseException as error:
        says(False, f"thread {k}: {type(error).__name__}: {str(error)[:120]}")


threads = [threading.Thread(target=worker, args=(k,)) for k in range(3)]
# First everything that a region has, while no other thread asks: a region belongs to the process.
with g.region("sleeper"), g.budget("1GiB", tag="sleeper"):
    inner = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(inner):
        asleep = [(fill(ints(30 * MIB), 11), 11)]
    asleep.append((fill(ints(20 * MIB), 12), 12))
    source = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = source + 3
    with g.no_region():
        awake = fill(ints(9 * MIB), 13)
torch.cuda.synchronize()
for t in threads:
    t.start()
for turn in range(12):
    g.sleep("sleeper", guard=False)
    says(int(wrong(awake, 13)) == 0, "what is outside of a region fell asleep with it")
    says(g.is_asleep(asleep[1][0]), "a tensor of a region did not fall asleep")
    for x, mark in outside:
        bad.append(int(wrong(x, mark)))
    g.wake("sleeper")
    source.fill_(turn)
    graph.replay()
    says(int((result != turn + 3).sum()) == 0, f"turn {turn}: a graph of the region computes something else")
    for x, mark in asleep:
        bad.append(int(wrong(x, mark)))
for t in threads:
    t.join(60)
torch.cuda.synchronize()
del graph, result, source, inner, asleep, awake
x = None
torch.cuda.synchronize()
torch.cuda.empty_cache()
stats = g.stats()
for tag in ("thread0", "thread1", "thread2", "sleeper"):
    left = stats.get(f"gapless.budgets.{tag}.live")
    says(left == 0, f"{left} bytes stay charged to {tag}")
for x, mark in outside:
    bad.append(int(wrong(x, mark)))
problems += adds_up()
done(not problems and sum(bad) == 0, "; ".join(problems[:3]) or f"twelve sleeps beside three threads, {sum(bad)} wrong elements")
