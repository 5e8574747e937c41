"""Statistics, peaks, snapshots and what a random program over three streams holds agree after every step."""
from common import *

g = start(limit=3 * GIB)
r, problems = rng(55), []
streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]
torch.cuda.synchronize()
torch.cuda.empty_cache()
base = torch.cuda.memory_stats()
live, peak, made, gone, request_peak = {}, 0, 0, 0, 0
requested = 0


def now(key):
    return torch.cuda.memory_stats()[key]


for step in range(2500):
    act = r.random()
    if act < 0.52 or not live:
        # Up to 1 MiB: rounded to 512 bytes by every allocator. Larger ones only count what was asked for.
        size = log_uniform(r, 1, MIB) if r.random() < 0.7 else r.randrange(MIB + 1, 24 * MIB)
        with torch.cuda.stream(streams[r.randrange(3)]):
            x = torch.empty(size, dtype=torch.uint8, device="cuda")
        live[x.data_ptr()] = (x, size)
        requested += size
        made += 1
        request_peak = max(request_peak, requested)
        del x
    elif act < 0.97:
        x, size = live.pop(r.choice(list(live)))
        if r.random() < 0.2:
            x.record_stream(streams[r.randrange(3)])
            del x
            torch.cuda.synchronize()  # free once the next request looks
            torch.cuda.empty_cache()
        else:
            del x
        requested -= size
        gone += 1
    elif act < 0.98:
        torch.cuda.reset_peak_memory_stats()
        request_peak = requested
        stats = torch.cuda.memory_stats()
        if stats["allocated_bytes.all.peak"] != stats["allocated_bytes.all.current"]:
            problems.append("a peak that was reset is not what is there")
    else:
        torch.cuda.empty_cache()
    if step % 10:
        continue
    stats = torch.cuda.memory_stats()
    small = sum(-(-size // 512) * 512 for _, size in live.values() if size <= MIB)
    checks = {
        "requested": (stats["requested_bytes.all.current"] - base["requested_bytes.all.current"], requested),
        "requested peak": (stats["requested_bytes.all.peak"] - base["requested_bytes.all.current"], request_peak),
        "count": (stats["allocation.all.current"] - base["allocation.all.current"], len(live)),
        "made": (stats["allocation.all.allocated"] - base["allocation.all.allocated"], made),
        "freed": (stats["allocation.all.freed"] - base["allocation.all.freed"], gone),
        "small": (stats["allocated_bytes.small_pool.current"] - base["allocated_bytes.small_pool.current"], small),
        "sum": (stats["allocated_bytes.all.current"],
                stats["allocated_bytes.small_pool.current"] + stats["allocated_bytes.large_pool.current"]),
        "total": (stats["allocated_bytes.all.allocated"] - stats["allocated_bytes.all.freed"],
                  stats["allocated_bytes.all.current"]),
        "shown": (torch.cuda.memory_allocated(), stats["allocated_bytes.all.current"]),
        "shown peak": (torch.cuda.max_memory_allocated(), stats["allocated_bytes.all.peak"]),
        "held": (torch.cuda.memory_reserved(), stats["reserved_bytes.all.current"]),
    }
    problems += [f"step {step}: {name} {a}, not {b}" for name, (a, b) in checks.items() if a != b]
    if not requested <= stats["allocated_bytes.all.current"] <= stats["active_bytes.all.current"]:
        problems.append(f"step {step}: requested, allocated and active bytes are out of order")
    if stats["active_bytes.all.current"] > stats["reserved_bytes.all.current"]:
        problems.append(f"step {step}: more active than reserved")
    if step % 100 == 0:
        problems += adds_up()
        blocks = [b for s in torch.cuda.memory_snapshot() for b in s["blocks"]]
        at = {b["address"]: b for b in blocks if b["state"] == "active_allocated"}
        for pointer, (x, size) in live.items():
            if pointer not in at or at[pointer]["requested_size"] != size or at[pointer]["size"] < size:
                problems.append(f"step {step}: a live block of {size} is not in the snapshot")
    if len(problems) > 5:
        break
done(not problems, "; ".join(problems[:4]) or f"2,500 steps, {made} made and {gone} freed")
