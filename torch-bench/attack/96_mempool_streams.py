"""Pools of the program's own with several streams and threads, record_stream, raw allocations, empty caches and
snapshots in the middle, an allocator that is switched off and on: bytes, books and addresses are right."""
import threading

from common import *

g = start(limit=3 * GIB)
r, problems, bad = rng(96), [], []
streams = [torch.cuda.Stream() for _ in range(3)]
outside = torch.cuda.Stream()


def says(ok, text):
    if not ok:
        problems.append(text)


def places(pool):
    return [(s["address"], s["address"] + s["total_size"]) for s in pool.snapshot()]


def is_in(pool, pointer):
    return any(low <= pointer < high for low, high in places(pool))


for turn in range(4):
    base = torch.cuda.memory_allocated()
    pool, kept, raw = torch.cuda.MemPool(), [], []
    for step in range(120):
        s = streams[r.randrange(3)]
        with torch.cuda.stream(s), torch.cuda.use_mem_pool(pool):
            mark = r.randrange(1 << 18)
            x = fill(ints(log_uniform(r, 512, 12 * MIB)), mark)
            if step % 11 == 0:
                raw.append(torch.cuda.caching_allocator_alloc(log_uniform(r, 512, 4 * MIB), stream=s.cuda_stream))
            if step % 17 == 0:
                torch.cuda.empty_cache()
            if step % 29 == 0:
                says(is_in(pool, x.data_ptr()), "a tensor is not in its pool")
                problems += adds_up()
        if step % 3 == 0:  # read elsewhere, and dropped before that is done
            outside.wait_stream(s)
            with torch.cuda.stream(outside):
                busy(0.1)
                bad.append(wrong(x, mark))
            x.record_stream(outside)
            del x
        else:
            kept.append((x, mark, s))
            del x
        with torch.cuda.stream(s):
            y = fill(ints(log_uniform(r, 512, 6 * MIB)), 1)
            if step % 29 == 1:
                says(not is_in(pool, y.data_ptr()), "a request outside went to the pool")
            del y
        while len(kept) > 14:
            x, mark, s = kept.pop(r.randrange(14))
            with torch.cuda.stream(s):
                bad.append(wrong(x, mark))
            del x
        while len(raw) > 5:
            torch.cuda.caching_allocator_delete(raw.pop(0))
    for pointer in raw:
        says(is_in(pool, pointer), "a raw allocation is not in the pool")
        torch.cuda.caching_allocator_delete(pointer)
    # One pool, three threads, one after the other.
    together = []

    def worker(k, pool=pool, together=together, turn=turn):
        mine = rng(k)
        with torch.cuda.stream(streams[k]), torch.cuda.use_mem_pool(pool):
            for step in range(40):
                x = fill(ints(log_uniform(mine, 512, 4 * MIB)), 100 * k + step)
                together.append((x, 100 * k + step, streams[k]))
        streams[k].synchronize()

    threads = [threading.Thread(target=worker, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
        t.join(30)
    says(len(together) == 120, "a thread failed")
    says(all(is_in(pool, x.data_ptr()) for x, _, _ in together[::10]), "a thread's tensor is not in the pool")
    for x, mark, s in kept + together:
        with torch.cuda.stream(s):
            bad.append(wrong(x, mark))
    says(pool.use_count() == 1, f"the pool is used {pool.use_count()} times")
    if turn % 2:
        del pool
        torch.cuda.empty_cache()
    del kept, together, x, t, threads, worker
    torch.cuda.synchronize()
    if not turn % 2:
        del pool
    torch.cuda.empty_cache()
    # Numbers of wrong elements, which `bad` has, are tensors too.
    bad = [int(sum(int(b) for b in bad))]
    torch.cuda.empty_cache()
    says(torch.cuda.memory_allocated() == base, f"turn {turn}: {torch.cuda.memory_allocated() - base} bytes stay")
# torch's switch: what was allocated before lives on, and is freed after.
before = fill(ints(24 * MIB), 9)
torch.cuda.memory.caching_allocator_enable(False)
during = [fill(ints(size), 10 + k) for k, size in enumerate((700, 3 * MIB, 40 * MIB))]
bad.append(wrong(before, 9))
del before
torch.cuda.memory.caching_allocator_enable(True)
after = fill(ints(24 * MIB), 13)
bad += [wrong(x, 10 + k) for k, x in enumerate(during)] + [wrong(after, 13)]
del during, after
torch.cuda.synchronize()
mistakes = sum(int(b) for b in bad)
torch.cuda.empty_cache()
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or f"four turns, {mistakes} wrong elements")
