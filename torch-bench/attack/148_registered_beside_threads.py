"""NCCL's communicator registers every segment of the allocator through its trace (the environment asks for it), while
threads make and drop graphs and MemPools, whose segments come and go: what goes is deregistered first, no call fails,
and collectives on eager memory, in graphs and in pools give the right sums."""
import gc
import os
import tempfile
import threading

os.environ["TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"] = "1"
from common import *

g = start(limit=4 * GIB)
import torch.distributed as dist

if not dist.is_available() or not dist.is_nccl_available():
    skip("no NCCL here")
problems, bad, stop = [], [], threading.Event()
# torch's own allocator cannot empty a cache while another thread has a pool open.
gate = threading.Lock()
folder = tempfile.mkdtemp()
try:
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1, device_id=torch.device("cuda:0"))
    x = torch.ones(8, device="cuda")
    dist.all_reduce(x)
    torch.cuda.synchronize()
except RuntimeError as error:
    skip(f"no NCCL here: {str(error).splitlines()[0][:100]}")


def comes_and_goes(k):
    r, mine, turns = rng(1480 + k), torch.cuda.Stream(), 0
    try:
        with torch.cuda.stream(mine):
            while not stop.is_set():
                pool = torch.cuda.MemPool()
                with gate, torch.cuda.use_mem_pool(pool):
                    live = [(fill(ints(log_uniform(r, 512, 24 * MIB)), n), n) for n in range(5)]
                wrongs = [wrong(x, n) for x, n in live]
                bad.append(sum(int(w) for w in wrongs))
                x = None
                with gate:
                    del live, wrongs, pool
                    if turns % 4 == 0:
                        torch.cuda.empty_cache()
                turns += 1
    except BaseException as error:
        problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:140] if str(error) else ''}")


threads = [threading.Thread(target=comes_and_goes, args=(k,)) for k in range(3)]
for t in threads:
    t.start()
r, until, rounds = rng(148), time.monotonic() + 8, 0
try:
    while time.monotonic() < until and not problems:
        mark = r.randrange(1 << 18)
        x = fill(ints(log_uniform(r, 4096, 16 * MIB)), mark)
        works = [dist.all_reduce(x, async_op=True), dist.broadcast(x, 0, async_op=True)]
        with dist._coalescing_manager(async_ops=True) as together:
            parts = [fill(ints(log_uniform(r, 4096, MIB)), mark + n) for n in range(4)]
            for part in parts:
                dist.all_reduce(part)
        for work in [*works, together]:
            work.wait()
        bad.append(int(wrong(x, mark)) + sum(int(wrong(part, mark + n)) for n, part in enumerate(parts)))
        del x, parts, works, together
        rounds += 1
        if rounds % 10 == 0:
            gc.collect()
except BaseException as error:
    problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}")
stop.set()
for t in threads:
    t.join(60)
torch.cuda.synchronize()
problems += adds_up()
dist.destroy_process_group()
done(not problems and sum(bad) == 0 and rounds > 0, "; ".join(problems[:2]) or f"{rounds} rounds beside {len(bad) - rounds} pools, {sum(bad)} wrong elements")
