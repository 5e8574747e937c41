"""torch's CUDA sanitizer finds nothing in a program that is right, finds the race in one that is not, and hears of
every allocation and free: with streams, record_stream, pools, raw memory, memory that one stream lends another, and
frees in other threads."""
import subprocess

from common import *

PROGRAM = """
import sys
sys.path.insert(0, {here!r})
from common import *
import threading
import torch.cuda._gpu_trace as trace
g = start(limit=512 * MIB)
heard, twice = {{}}, []
def came(pointer):
    if pointer in heard:
        twice.append(pointer)
    heard[pointer] = True
def went(pointer):
    if heard.pop(pointer, None) is None:
        twice.append(-pointer)
trace.register_callback_for_memory_allocation(came)
trace.register_callback_for_memory_deallocation(went)
r, side = rng({seed}), [torch.cuda.Stream() for _ in range(3)]
kept, pool = [], torch.cuda.MemPool()
for turn in range(300):
    stream = r.choice(side)
    with torch.cuda.stream(stream):
        try:
            x = torch.zeros(log_uniform(r, 100, 8 * MIB), device="cuda")
        except torch.OutOfMemoryError:
            kept.clear()
            continue
        x += 1
    if r.random() < 0.3:
        other = r.choice(side)
        other.wait_stream(stream)
        with torch.cuda.stream(other):
            y = x * 2
        x.record_stream(other)
    if r.random() < 0.2:
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.zeros(1000, device="cuda"))
    if r.random() < 0.5:
        kept.append(x)
    if len(kept) > 12:
        gone = [kept.pop(r.randrange(len(kept))) for _ in range(4)]
        thread = threading.Thread(target=gone.clear)
        thread.start()
        thread.join()
    if r.random() < 0.05:
        raw = torch.cuda.caching_allocator_alloc(5000)
        torch.cuda.caching_allocator_delete(raw)
    if r.random() < 0.03:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    x = y = None
if {race}:
    a = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side[0]):
        a += 1
    with torch.cuda.stream(side[1]):
        a += 1
live = len(heard)
torch.cuda.synchronize()
count = torch.cuda.memory_stats()["allocation.all.current"]
print("heard", live, "there", count, "twice", len(twice))
sys.exit(0 if abs(count - live) <= 3 and not twice else 9)
"""
problems = []
for seed, race in ((1, False), (2, False), (3, True)):
    text = PROGRAM.format(here=os.path.dirname(os.path.abspath(sys.argv[0])), seed=seed, race=race)
    env = os.environ | {"TORCH_CUDA_SANITIZER": "1"}
    run = subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=80)
    found = "CSAN detected" in run.stdout + run.stderr
    if found != race:
        problems.append(f"race {race}, found {found}: {run.stdout[-300:]} {run.stderr[-500:]}")
    if not race and run.returncode:
        problems.append(f"it ended with {run.returncode}: {run.stdout[-300:]} {run.stderr[-500:]}")
for problem in problems[:6]:
    print(problem)
done(not problems, f"two programs without a race and one with, {len(problems)} problems")
