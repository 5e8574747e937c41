"""Settings for pinned memory (host registration by several threads, a background thread that looks at events, rounding)
together with those for the card, in the environment: copies of pinned tensors that are dropped while they are under way
arrive whole, both ways and over streams."""
import os
import subprocess
import sys

SETTINGS = ["pinned_use_background_threads:True",
            "pinned_use_cuda_host_register:True,pinned_num_register_threads:4",
            "pinned_use_cuda_host_register:True,pinned_use_background_threads:True,roundup_power2_divisions:4,"
            "max_split_size_mb:64,garbage_collection_threshold:0.7",
            "pinned_use_background_threads:True,expandable_segments:True"]
if len(sys.argv) > 1:
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = SETTINGS[int(sys.argv[1])]
from common import *

if len(sys.argv) == 1:
    said, running = [], []
    for k in range(len(SETTINGS)):
        words = [sys.executable, "-W", "ignore", os.path.abspath(__file__), str(k)]
        running.append(subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    for k, child in enumerate(running):
        try:
            out = child.communicate(timeout=70)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            out = "no end within 70 s"
        if child.returncode != 0:
            said.append(f"{SETTINGS[k]}: {(out.strip().splitlines() or [''])[-1][:160]}")
    done(not said, "; ".join(said[:2]) or f"{len(SETTINGS)} settings")
g = start(limit=2 * GIB)
r, up, down, problems, bad, mistakes = rng(144), torch.cuda.Stream(), torch.cuda.Stream(), [], [], 0
for s in (up, down):
    with torch.cuda.stream(s):
        int(wrong(fill(ints(MIB), 1), 1))
arrived = []
for step in range(250):
    count, mark = log_uniform(r, 256, 2 * MIB), r.randrange(1 << 18)
    host = torch.empty(count, dtype=torch.int32, pin_memory=True)
    torch.arange(mark, mark + count, out=host)
    with torch.cuda.stream(up):
        x = host.to("cuda", non_blocking=True)
        bad.append(wrong(x, mark))
    # The host's side is dropped under way; its next owner writes at once.
    del host
    down.wait_stream(up)
    with torch.cuda.stream(down):
        back = torch.empty(count, dtype=torch.int32, pin_memory=True)
        back.copy_(x, non_blocking=True)
        event = down.record_event()
    x.record_stream(down)
    del x
    arrived.append((back, mark, event))
    del back
    while len(arrived) > 6:
        back, mark, event = arrived.pop(0)
        event.synchronize()
        mistakes += int((back != torch.arange(mark, mark + back.numel(), dtype=torch.int32)).sum())
        del back
    if step % 50 == 49:
        torch.cuda.synchronize()
        mistakes += sum(int(b) for b in bad)
        bad = []
        torch.cuda.empty_cache()
        problems += adds_up()
torch.cuda.synchronize()
mistakes += sum(int(b) for b in bad)
if not torch.cuda.host_memory_stats().get("allocations.current", 1):
    problems.append("no pinned memory is counted")
done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"250 copies each way, {mistakes} wrong elements")
