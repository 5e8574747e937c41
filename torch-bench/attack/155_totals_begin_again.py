"""After reset_accumulated_memory_stats() every total and every counter is nothing, and counts from there what the
program does: requests, frees, failures, calls of the device, waits for streams. Peaks and what is there stay; after
reset_peak_memory_stats() it is the other way round."""
from common import *

g = start(limit=1 * GIB)
problems, side, r = [], torch.cuda.Stream(), rng(155)
COUNTERS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
GROUPS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
          "inactive_split_bytes", "requested_bytes")
PARTS = ("all", "small_pool", "large_pool")
live = []


def says(ok, text):
    if not ok:
        problems.append(text)


def work(count):
    """Requests, frees, a failure and an emptied cache; how many requests and frees."""
    made = freed = 0
    for _ in range(count):
        live.append(ints(log_uniform(r, 512, 20 * MIB)))
        made += 1
        if len(live) > 8:
            x = live.pop(r.randrange(8))
            if r.random() < 0.3:
                x.record_stream(side)
            del x
            freed += 1
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    try:
        torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    # More than was ever there: the device gives it, and takes it back.
    x = ints(500 * MIB)
    del x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return made + 1, freed + 1


for turn in range(5):
    work(30)
    before = torch.cuda.memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    after = torch.cuda.memory_stats()
    for name in COUNTERS:
        says(after[name] == 0, f"{name} is {after[name]} after totals began again")
    for key in (f"{name}.{part}" for name in GROUPS for part in PARTS):
        says((after[f"{key}.allocated"], after[f"{key}.freed"]) == (0, 0), f"totals of {key} did not begin again")
        says(after[f"{key}.current"] == before[f"{key}.current"], f"{key} has changed when totals began again")
        says(after[f"{key}.peak"] == before[f"{key}.peak"], f"the peak of {key} has changed when totals began again")
    made, freed = work(20)
    now = torch.cuda.memory_stats()
    says((now["allocation.all.allocated"], now["allocation.all.freed"]) == (made, freed), "requests and frees are miscounted")
    says(now["num_ooms"] == 1, f"{now['num_ooms']} failures were counted, not one")
    says(now["num_device_alloc"] >= 1 and now["num_device_free"] >= 1, "no call of the device was counted")
    for name in GROUPS:
        for part in PARTS:
            more = now[f"{name}.{part}.allocated"] - now[f"{name}.{part}.freed"]
            says(more == now[f"{name}.{part}.current"] - after[f"{name}.{part}.current"], f"totals of {name}.{part} do not add up")
    torch.cuda.reset_peak_memory_stats()
    last = torch.cuda.memory_stats()
    for name in COUNTERS:
        says(last[name] == now[name], f"{name} has changed when peaks began again")
    for key in (f"{name}.{part}" for name in GROUPS for part in PARTS):
        says(last[f"{key}.peak"] == last[f"{key}.current"], f"the peak of {key} did not begin again")
        says(last[f"{key}.allocated"] == now[f"{key}.allocated"], f"totals of {key} have changed when peaks began again")
problems += adds_up()
done(not problems, f"{len(problems)}: " + "; ".join(sorted(set(problems))[:3]) if problems else "five turns")
