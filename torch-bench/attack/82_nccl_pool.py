"""A MemPool over NCCL's own allocator, registered with the communicator, serves collectives while other memory comes
and goes; deregistered, emptied and made again."""
from common import *

import torch.distributed as dist

g = start(limit=3 * GIB)
if not dist.is_available() or not dist.is_nccl_available():
    skip("no NCCL")
try:
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    backend = dist.group.WORLD._get_backend(device)
    theirs = backend.mem_allocator
except (RuntimeError, AttributeError) as error:
    skip(f"NCCL or its allocator is not there: {str(error).splitlines()[0][:100]}")
r, bad, turns, side = rng(82), [], 6, torch.cuda.Stream()
problems = []
try:
    for turn in range(turns):
        pool = torch.cuda.MemPool(theirs)
        with torch.cuda.use_mem_pool(pool):
            inside = [ints(size) for size in (300 * KIB, 3 * MIB, 24 * MIB, 40 * MIB)]
        backend.register_mem_pool(pool)
        if turn % 2:
            with torch.cuda.use_mem_pool(pool):  # comes after the registration: the tracker registers it
                inside.append(ints(30 * MIB))
        held = sum(s["allocated_size"] for s in pool.snapshot())
        if held < sum(x.numel() * 4 for x in inside):
            problems.append(f"the pool shows {held} bytes")
        for step in range(12):
            with torch.cuda.stream(side if step % 3 == 0 else torch.cuda.default_stream()):
                x = inside[step % len(inside)]
                fill(x, 100 * turn + step)
                out = torch.empty_like(x)
                work = dist.all_gather_into_tensor(out, x, async_op=True)
                junk = ints(log_uniform(r, 512, 24 * MIB)).fill_(-1)
                del junk
                work.wait()
                dist.all_reduce(x)
                bad.append(wrong(out, 100 * turn + step) + wrong(x, 100 * turn + step))
                del out, work
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
        torch.cuda.empty_cache()
        backend.deregister_mem_pool(pool)
        del inside, x, pool
        torch.cuda.empty_cache()
except (RuntimeError, NotImplementedError) as error:
    text = f"turn {turn}: {str(error).splitlines()[0][:140]}"
    if NATIVE:
        skip(text)
    problems.append(text)
torch.cuda.synchronize()
mistakes = sum(int(b) for b in bad)
problems += adds_up()
dist.destroy_process_group()
done(mistakes == 0 and not problems, f"{len(bad)} collectives in {turns} pools, {mistakes} wrong {problems[:2]}")
