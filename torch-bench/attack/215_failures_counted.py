"""Requests that fail are counted, told to observers and noted in the history by what they are: a tensor of more than
any card has is refused without a word, as natively, and raw memory of that size is a failure like any other. Nothing of
it changes what is held, and the next request is served."""
from common import *

start(limit=GIB)
observed, problems = [], []
torch._C._cuda_attach_out_of_memory_observer(lambda device, size, total, free: observed.append((device, size)))
torch.cuda.memory._record_memory_history(context=None)
kept = fill(ints(5 * MIB), 3)
WAYS = {
    "tensor": lambda size: torch.empty(size, dtype=torch.uint8, device="cuda"),
    "raw": lambda size: torch.cuda.caching_allocator_alloc(size),
    "raw on a stream": lambda size: torch.cuda.caching_allocator_alloc(size, stream=torch.cuda.Stream()),
    "storage": lambda size: torch.UntypedStorage(size, device="cuda"),
    "resized": lambda size: kept.new_empty(4).untyped_storage().resize_(size),
}
SIZES = (2 * GIB, 1 << 45, (1 << 60) - 512, 1 << 60, (1 << 61) + 1000, (1 << 62))
for way, ask in WAYS.items():
    for size in SIZES:
        before = torch.cuda.memory_stats()
        observed.clear()
        entries = sum(e["action"] == "oom" for e in torch.cuda.memory._snapshot()["device_traces"][0])
        try:
            ask(size)
            problems.append(f"{way} of {size} is served")
        except torch.OutOfMemoryError as error:
            says = "more than 1EB" in str(error)
        after = torch.cuda.memory_stats()
        noted = sum(e["action"] == "oom" for e in torch.cuda.memory._snapshot()["device_traces"][0]) - entries
        failed = after["num_ooms"] - before["num_ooms"]
        # Only tensors are looked at before the card is asked.
        silent = size >= 1 << 60 and not way.startswith("raw")
        if (failed, len(observed), noted, says) != ((0, 0, 0, True) if silent else (1, 1, 1, False)):
            problems.append(f"{way} of {size}: {failed} counted, {observed} observed, {noted} noted, {says}")
        # Beyond that torch's own allocator rounds.
        if observed and size <= 1 << 45 and observed != [(0, size)]:
            problems.append(f"{way} of {size} was observed as {observed}")
        if after["allocated_bytes.all.current"] != before["allocated_bytes.all.current"]:
            problems.append(f"{way} of {size} changed what is allocated")
        x = torch.empty(1000, device="cuda")
        del x
if int(wrong(kept, 3)):
    problems.append("bytes changed")
done(not problems, f"{len(WAYS) * len(SIZES)} failures, {len(problems)} problems: {problems[:2]}")
