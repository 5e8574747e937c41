"""MemPools that let others have their free memory when it runs out (use_on_oom), and that never split (no_split):
requests outside are served from them as they lie, tensors outlive the pool that they came from, and without the switch
they fail."""
from common import *

g = start(limit=1 * GIB)
problems, mistakes = [], 0


def says(ok, text):
    if not ok:
        problems.append(text)


def is_in(pool, x):
    return any(s["address"] <= x.data_ptr() < s["address"] + s["total_size"] for s in pool.snapshot())


try:
    torch.cuda.MemPool(use_on_oom=True)
except TypeError:
    skip("this torch has no such pools")
torch.cuda.empty_cache()
for turn in range(4):
    for lends in (True, False):
        pool = torch.cuda.MemPool(use_on_oom=lends)
        with torch.cuda.use_mem_pool(pool):
            kept = fill(ints(40 * MIB), turn)
            free = ints(600 * MIB)
        del free
        ballast = fill(ints(200 * MIB), 7)
        try:
            x = fill(ints(500 * MIB), 9)
            says(lends, "a pool that does not lend has lent")
            says(is_in(pool, x), "what a pool lent is not in it")
        except torch.OutOfMemoryError:
            says(not lends, "a pool that lends was not asked")
            x = None
        mistakes += int(wrong(kept, turn)) + int(wrong(ballast, 7))
        if x is not None:
            # The pool goes, what it lent stays.
            if turn % 2:
                del pool
            torch.cuda.empty_cache()
            mistakes += int(wrong(x, 9))
            x.fill_(-1)
            mistakes += int(wrong(kept, turn)) + int(wrong(ballast, 7))
            if not turn % 2:
                try:
                    with torch.cuda.use_mem_pool(pool):
                        ints(550 * MIB)
                    says(False, "what a pool lent was handed out again")
                except torch.OutOfMemoryError:
                    pass
        x = kept = ballast = pool = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        says(torch.cuda.memory_reserved() <= 32 * MIB, f"{torch.cuda.memory_reserved() // MIB} MiB are reserved after all went")
        problems += adds_up()
# Whole segments: neighbours keep their bytes, and the pool's own requests are served again.
try:
    whole = torch.cuda.MemPool(no_split=True)
except TypeError:
    whole = torch.cuda.MemPool()
r, live = rng(140), []
for step in range(200):
    with torch.cuda.use_mem_pool(whole):
        mark = r.randrange(1 << 18)
        live.append((fill(ints(r.choice([512, 300 * KIB, 2 * MIB, 3 * MIB, 11 * MIB])), mark), mark))
    if len(live) > 10:
        x, mark = live.pop(r.randrange(10))
        mistakes += int(wrong(x, mark))
        del x
mistakes += sum(int(wrong(x, mark)) for x, mark in live)
says(all(is_in(whole, x) for x, _ in live), "a tensor is not in its pool")
problems += adds_up()
live = x = whole = None
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"eight pools, {mistakes} wrong elements")
