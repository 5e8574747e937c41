"""Requests of absurd sizes raise OutOfMemoryError every time, cost nothing, and leave data and books as they were."""
import gc

from common import *

g = start(limit=1 * GIB)
keep = [(fill(ints(size), k), k) for k, size in enumerate((512, 4096, 3 * MIB, 100 * MIB))]
torch.cuda.synchronize()
before = torch.cuda.memory_stats()
sizes = [2 * GIB, (1 << 40) + 1, (1 << 50) - 1, 1 << 59, (1 << 60) - 512, 1 << 60, (1 << 62) - 1, 1 << 62,
         (1 << 63) - 513, (1 << 63) - 1]
wrongs, count = set(), 0
streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
for turn in range(20):
    for size in sizes:
        with torch.cuda.stream(streams[turn % 2]):
            try:
                x = torch.empty(size, dtype=torch.uint8, device="cuda")
                wrongs.add(f"{size} bytes were served")
            except torch.OutOfMemoryError as error:
                count += 1
                if not str(error).startswith("CUDA out of memory. Tried to allocate"):
                    wrongs.add(str(error).splitlines()[0][:100])
            except RuntimeError as error:
                wrongs.add(f"{size}: {str(error).splitlines()[0][:100]}")
        if size < 1 << 59:
            try:
                torch.cuda.caching_allocator_alloc(size)
                wrongs.add(f"{size} raw bytes were served")
            except torch.OutOfMemoryError:
                count += 1
    try:
        torch.empty(1 << 62, dtype=torch.float64, device="cuda")
        wrongs.add("a size that overflows was served")
    except torch.OutOfMemoryError:
        wrongs.add("a size that overflows is no matter of memory")
    except RuntimeError:
        pass
    empty = torch.empty(0, device="cuda")
    if empty.numel() != 0 or (empty + 1).shape != (0,):
        wrongs.add("an empty tensor is not empty")
    del empty
gc.collect()
torch.cuda.synchronize()
after = torch.cuda.memory_stats()
for key in ("allocated_bytes.all.current", "active_bytes.all.current", "requested_bytes.all.current",
            "allocation.all.current", "allocated_bytes.all.peak"):
    if before[key] != after[key]:
        wrongs.add(f"{key} went from {before[key]} to {after[key]}")
mistakes = sum(int(wrong(x, k)) for x, k in keep)
y = fill(ints(600 * MIB), 9)  # what is left can be had
mistakes += int(wrong(y, 9))
wrongs.update(adds_up())
done(not wrongs and mistakes == 0, f"{count} refusals, {mistakes} wrong elements; {sorted(wrongs) or ''}")
