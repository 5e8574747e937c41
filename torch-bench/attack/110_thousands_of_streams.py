"""Two thousand streams of the program's own, each with a tensor that outlives it: streams are synchronised and
destroyed, others come with the same handles, and every tensor keeps its bytes until it is freed."""
from common import *

g = start(limit=7 * GIB)
cuda = driver()
r, problems, kept, mistakes = rng(110), [], [], 0
MANY = 2000
base = torch.cuda.memory_allocated()
handles = []
try:
    for k in range(MANY):
        handle = new_stream(cuda, k % 2)
        handles.append(handle)
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            kept.append((fill(ints(r.choice((512, 4096, 100 * KIB, 900 * KIB))), k), k))
except (RuntimeError, torch.OutOfMemoryError) as error:
    problems.append(f"stream {len(handles)}: {str(error).splitlines()[0][:120]}")
torch.cuda.synchronize()
# All at once: no two lie over each other.
spans = sorted((t.data_ptr(), t.data_ptr() + 4 * t.numel()) for t, _ in kept)
if any(a[1] > b[0] for a, b in zip(spans, spans[1:])):
    problems.append("two tensors overlap")
totals = [wrong(t, mark) for t, mark in kept[::7]]
mistakes += int(sum(totals)) if totals else 0
del totals
# Streams go, tensors stay; new streams get old handles, and memory that is theirs alone.
gone = handles[: MANY // 2]
for handle in gone:
    destroy_stream(cuda, handle)
again, same = [], 0
for k in range(300):
    handle = new_stream(cuda)
    same += handle in set(gone)
    again.append(handle)
    with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
        kept.append((fill(ints(r.choice((512, 300 * KIB, 3 * MIB))), 5000 + k), 5000 + k))
torch.cuda.synchronize()
r.shuffle(kept)
for at, (t, mark) in enumerate(kept):
    if at % 5 == 0:
        mistakes += int(wrong(t, mark))
# Half of them go, on whatever stream; the rest is whole.
del kept[: len(kept) // 2], t
torch.cuda.synchronize()
torch.cuda.empty_cache()
big = fill(ints(2 * GIB), 9)
mistakes += int(wrong(big, 9))
del big
for at, (t, mark) in enumerate(kept):
    if at % 4 == 0:
        mistakes += int(wrong(t, mark))
del t
problems += adds_up()
kept.clear()
torch.cuda.synchronize()
for handle in handles[MANY // 2 :] + again:
    destroy_stream(cuda, handle)
torch.cuda.empty_cache()
left = torch.cuda.memory_allocated() - base
if left > 4 * MIB:
    problems.append(f"{left} bytes stay allocated")
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or f"{len(handles)} streams, {same} handles again, {mistakes} wrong elements")
