"""Tasks of one thread that take turns (asyncio, generators), each with a stream, a memory pool, a device guard and, on
Gapless, a budget of its own, which open and close in any order: the tensors of each turn lie in the pool and on the
device of its own scopes, and all scopes are closed in the end."""
import asyncio

from common import *

g = start(limit=GIB)
problems, count = [], 0


def pools_of():
    return {b["address"]: tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == "active_allocated"}


def task(k, r):
    """Yields, so that others may run. A scope is the thread's: each turn opens its own."""
    stream, pool, kept = torch.cuda.Stream(), torch.cuda.MemPool(), []
    for turn in range(12):
        with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool):
            x = fill(ints(log_uniform(r, 512, 2 * MIB)), 10 * k + turn)
        kept.append((x, 10 * k + turn))
        yield
        if len(kept) > 4:
            kept.pop(r.randrange(len(kept)))
        yield
    found = pools_of()
    for x, seed in kept:
        stream.synchronize()
        if int(wrong(x, seed)):
            problems.append(f"task {k} has wrong elements")
        if found.get(x.data_ptr()) != tuple(pool.id):
            problems.append(f"a tensor of task {k} lies in {found.get(x.data_ptr())}, not in {tuple(pool.id)}")


def interleaved(k, r):
    """Scopes that stay open while others run: the newest that is open takes what is asked for."""
    pool = torch.cuda.MemPool()
    scope = torch.cuda.use_mem_pool(pool)
    scope.__enter__()
    opened.append(pool)
    yield
    for _ in range(r.randrange(1, 5)):
        x = ints(4000)
        found = pools_of().get(x.data_ptr())
        if found != tuple(opened[-1].id):
            problems.append(f"a request with {len(opened)} scopes open went to {found}, not to {tuple(opened[-1].id)}")
        del x
        yield
    scope.__exit__(None, None, None)
    opened.remove(pool)
    # torch's own allocator ends the process if a pool goes while another takes requests.
    ended.append(pool)
    yield


opened, ended = [], []
many_snapshots()
r = rng(4)
for make, turns in ((task, 4), (interleaved, 12)):
    for _ in range(turns):
        running = [make(k, r) for k in range(5)]
        while running:
            one = r.choice(running)
            try:
                count += 1
                next(one)
            except StopIteration:
                running.remove(one)
        ended.clear()


async def request(k):
    own = torch.cuda.MemPool()
    total = []
    for turn in range(6):
        with torch.cuda.use_mem_pool(own):
            x = fill(ints((1 + turn) * 100 * KIB), k)
        await asyncio.sleep(0)
        total.append(x)
        if g is not None:
            with g.budget("900MiB", tag=f"task{k % 3}"):
                y = ints(MIB)
            await asyncio.sleep(0)
            del y
    if sum(int(wrong(x, k)) for x in total):
        problems.append(f"request {k} has wrong elements")
    if k == 3:
        raise ValueError("of a request")


async def main():
    return await asyncio.gather(*(request(k) for k in range(8)), return_exceptions=True)


ended = asyncio.run(main())
if [type(e).__name__ for e in ended if e is not None] != ["ValueError"]:
    problems.append(f"requests ended with {ended}")
del ended
x = ints(1000)
if any(pools_of()[x.data_ptr()]):
    problems.append("a scope stayed open")
if g is not None and sum(value for key, value in g.stats().items() if key.startswith("gapless.budgets.task") and key.endswith(".live")):
    problems.append("a budget is charged")
problems += adds_up()
for problem in problems[:6]:
    print(problem)
done(not problems, f"{count} turns of tasks, {len(problems)} problems")
