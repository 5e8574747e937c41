"""torch.profiler with profile_memory hears every allocation and free, with totals that are right at each of them,
beside a history, in a backward pass and with frees that wait."""
import json
import tempfile

from common import *

g = start(limit=2 * GIB)
problems, r, side = [], rng(85), torch.cuda.Stream()
torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=2000)
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)).cuda()
model(torch.randn(64, 512, device="cuda")).square().mean().backward()  # libraries have their workspaces
model.zero_grad(set_to_none=True)
side.wait_stream(torch.cuda.current_stream())
torch.cuda.synchronize()
count = 0


def round_of(seed):
    """Allocations and frees; what is kept, and how much allocated memory it is."""
    kept = []
    for step in range(60):
        kept.append(ints(log_uniform(r, 16, 12 * MIB)))
        if len(kept) > 8:
            x = kept.pop(r.randrange(8))
            if step % 4 == 0:
                x.record_stream(side)
            del x
    out = model(torch.randn(300 + seed, 512, device="cuda"))
    out.square().mean().backward()
    model.zero_grad(set_to_none=True)
    return kept[:3] + [out.detach()]


for turn in range(4):
    before = torch.cuda.memory_allocated()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        kept = round_of(turn)
    after = torch.cuda.memory_allocated()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        prof.export_chrome_trace(path)
        with open(path) as f:
            events = json.load(f)["traceEvents"]
    memory = [e for e in events if e.get("name") == "[memory]" and e["args"].get("Device Type") == 1]
    memory.sort(key=lambda e: e["ts"])
    changed = sum(e["args"]["Bytes"] for e in memory)
    if changed != after - before:
        problems.append(f"turn {turn}: {changed} bytes heard, {after - before} changed")
    if memory and memory[-1]["args"]["Total Allocated"] != after:
        problems.append(f"turn {turn}: the last total is {memory[-1]['args']['Total Allocated']}, {after} are allocated")
    if any(e["args"]["Total Allocated"] < 0 or e["args"]["Total Reserved"] < e["args"]["Total Allocated"] for e in memory):
        problems.append(f"turn {turn}: a total is impossible")
    # By address: a block comes, and goes with the size that it came with.
    sizes = {}
    for e in memory:
        addr, size = e["args"]["Addr"], e["args"]["Bytes"]
        if size > 0:
            if addr in sizes:
                problems.append(f"turn {turn}: an address came twice")
            sizes[addr] = size
        elif addr in sizes and sizes.pop(addr) != -size:
            problems.append(f"turn {turn}: a block went with another size")
    missing = [x for x in kept if x.data_ptr() not in sizes]
    if missing:
        problems.append(f"turn {turn}: {len(missing)} kept tensors were not heard of")
    table = prof.key_averages().table(row_limit=5)
    if "Mem" not in table:
        problems.append("the table has no column of memory")
    count += len(memory)
    del kept, missing, prof
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
torch.cuda.memory._record_memory_history(enabled=None)
problems += adds_up()
done(not problems and count > 100, "; ".join(problems[:4]) or f"{count} events in four profiles, all totals right")
