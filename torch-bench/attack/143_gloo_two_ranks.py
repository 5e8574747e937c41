"""Two processes on one card exchange CUDA tensors through gloo, which copies them by pinned memory on streams of its
own, asynchronously, several at once, while memory comes and goes between: every sum and every copy arrives whole."""
import subprocess
import sys
import tempfile

CHILD = r"""
import sys
from common import *
import torch.distributed as dist

rank, path = int(sys.argv[1]), sys.argv[2]
g = start(limit=2 * GIB)
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
r, mistakes, side = rng(143), 0, torch.cuda.Stream()
for turn in range(40):
    pending, marks = [], []
    for k in range(6):
        size, mark, which = log_uniform(r, 4096, 6 * MIB), r.randrange(1 << 16), r.randrange(3)
        stream = side if k % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            x = fill(ints(size), mark + (rank if which == 0 else 0) if which != 1 or rank == 0 else 0)
            if which == 0:
                work = dist.all_reduce(x, async_op=True)     # (m + i) + (m + 1 + i)
            elif which == 1:
                work = dist.broadcast(x, src=0, async_op=True)
            else:
                x.mul_(rank)
                work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
        pending.append((x, work, which, mark, stream))
        junk = [ints(log_uniform(r, 512, 3 * MIB)).fill_(-1) for _ in range(4)]
        del junk, x
    for x, work, which, mark, stream in pending:
        with torch.cuda.stream(stream):
            work.wait()
            if which == 0:
                x.sub_(1).div_(2, rounding_mode="floor")
            mistakes += int(wrong(x, mark))
    del pending, x, work
    if turn % 10 == 9:
        torch.cuda.empty_cache()
torch.cuda.synchronize()
problems = adds_up()
dist.barrier()
dist.destroy_process_group()
print(f"RESULT {mistakes} {problems[:1]}", flush=True)
sys.exit(0 if mistakes == 0 and not problems else 1)
"""
from common import *

with tempfile.TemporaryDirectory() as folder:
    env = dict(os.environ)
    env["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__)) + os.pathsep + env.get("PYTHONPATH", "")
    path = os.path.join(folder, "store")
    both = [subprocess.Popen([sys.executable, "-c", CHILD, str(rank), path], env=env, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True) for rank in range(2)]
    outs = []
    for child in both:
        try:
            outs.append(child.communicate(timeout=70)[0])
        except subprocess.TimeoutExpired:
            for other in both:
                other.kill()
            outs.append(child.communicate()[0] + "\nno end within 70 s")
codes = [child.returncode for child in both]
last = [out.strip().splitlines()[-1][:140] if out.strip() else "" for out in outs]
done(codes == [0, 0], f"codes {codes}: {last}")
