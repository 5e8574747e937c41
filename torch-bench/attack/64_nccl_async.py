"""Tensors of asynchronous NCCL collectives that are dropped before the work is waited for keep their bytes until it
is done."""
from common import *

import torch.distributed as dist

g = start(limit=2 * GIB)
if not dist.is_available() or not dist.is_nccl_available():
    skip("no NCCL")
try:
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
except RuntimeError as error:
    skip(f"NCCL does not start: {str(error).splitlines()[0][:100]}")
r, bad, pending = rng(64), [], []
side = torch.cuda.Stream()


def stream_of(step):
    return side if step % 3 == 0 else torch.cuda.default_stream()


def look(work, out, mark):
    """On the stream that the collective was asked for on, which waits for it."""
    with torch.cuda.stream(stream_of(mark)):
        work.wait()
        bad.append(wrong(out, mark))


for step in range(300):
    with torch.cuda.stream(stream_of(step)):
        x = fill(ints(log_uniform(r, 4096, 40 * MIB)), step)
        out = torch.empty_like(x)
        if step % 2:
            work = dist.all_gather_into_tensor(out, x, async_op=True)
        else:
            work = dist.reduce_scatter_tensor(out, x, async_op=True)
        del x  # the input goes early; the output is kept
        junk = ints(log_uniform(r, 4096, 40 * MIB)).fill_(-1)
        del junk
    pending.append((work, out, step))
    del work, out
    if len(pending) > 5:
        work, out, mark = pending.pop(r.randrange(5))
        look(work, out, mark)
        del out, work
for item in pending:
    look(*item)
torch.cuda.synchronize()
mistakes = sum(int(b) for b in bad)
dist.destroy_process_group()
done(mistakes == 0, f"{len(bad)} collectives, {mistakes} wrong elements")
