"""NCCL registers segments through the allocator's trace, and regions whose pools it has registered sleep and wake,
also while other threads make and drop pools: it hears of each end before the memory goes and of each return, no call
fails, and collectives on woken memory give the right sums (Gapless only)."""
import os
import tempfile
import threading

os.environ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "1"
from common import *

if NATIVE:
    skip("regions are Gapless's")
g = start(limit=3 * GIB)
import torch.distributed as dist

if not dist.is_available() or not dist.is_nccl_available():
    skip("no NCCL here")
folder, problems, bad, stop = tempfile.mkdtemp(), [], [], threading.Event()
try:
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
except RuntimeError as error:
    skip(f"no NCCL here: {str(error).splitlines()[0][:100]}")


def beside():
    r, mine = rng(1780), torch.cuda.Stream()
    try:
        with torch.cuda.stream(mine):
            while not stop.is_set():
                pool = torch.cuda.MemPool()
                with torch.cuda.use_mem_pool(pool):
                    live = [(fill(ints(log_uniform(r, 512, 16 * MIB)), n), n) for n in range(4)]
                bad.append(sum(int(wrong(x, n)) for x, n in live))
                x = None
                del live, pool
    except BaseException as error:
        problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:140] if str(error) else ''}")


def made(k):
    with g.region(f"r{k}"):
        own = fill(ints((5 + k) * MIB), k)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            held = [fill(ints(size), 10 * k + n) for n, size in enumerate((700, 3 * MIB, 30 * MIB))]
    return own, held, pool


parts = [made(k) for k in range(3)]
thread = threading.Thread(target=beside)
thread.start()
r, until, turns = rng(178), time.monotonic() + 9, 0
try:
    while time.monotonic() < until and not problems:
        k = r.randrange(3)
        own, held, _ = parts[k]
        for n, x in enumerate(held):
            dist.all_reduce(x)
            bad.append(int(wrong(x, 10 * k + n)))
        dist.all_reduce(own)
        bad.append(int(wrong(own, k)))
        torch.cuda.synchronize()
        if turns % 3 == 2:
            other = (k + 1) % 3
            g.sleep(f"r{other}", guard=False)
            g.switch(f"r{k}", f"r{other}", guard=False)
        else:
            g.sleep(f"r{k}", guard=False)
        junk = fill(ints(log_uniform(r, MIB, 200 * MIB)), turns)
        dist.all_reduce(junk)
        bad.append(int(wrong(junk, turns)))
        del junk
        g.wake(f"r{k}")
        for n, x in enumerate(held):
            bad.append(int(wrong(x, 10 * k + n)))
            dist.all_reduce(x)
            bad.append(int(wrong(x, 10 * k + n)))
        turns += 1
except BaseException as error:
    problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}")
stop.set()
thread.join(60)
own = held = x = _ = None
parts.clear()
torch.cuda.synchronize()
problems += adds_up()
dist.destroy_process_group()
done(not problems and sum(bad) == 0 and turns > 0, "; ".join(problems[:2]) or f"{turns} sleeps of registered pools, {sum(bad)} wrong elements")
