"""A host that runs thousands of requests and frees ahead of four streams gives no stream memory that another still
waits to read."""
from common import *

g = start(limit=1 * GIB)
streams = [torch.cuda.Stream() for _ in range(4)]
r, bad, ooms = rng(62), [], 0
for s in streams:
    with torch.cuda.stream(s):
        wrong(fill(ints(MIB), 1), 1)  # kernels are loaded before
torch.cuda.synchronize()
for turn in range(12):
    for s in streams:
        with torch.cuda.stream(s):
            busy(60 if s is streams[turn % 4] else 5)  # one lags far behind
    held = []
    for step in range(250):
        k = r.randrange(4)
        mark = turn * 1000 + step
        try:
            with torch.cuda.stream(streams[k]):
                x = fill(ints(log_uniform(r, 4096, 30 * MIB)), mark)
            held.append((x, mark, k, streams[k].record_event()))
            del x
        except torch.OutOfMemoryError:
            ooms += 1
            held.clear()
        while len(held) > 10:
            x, mark, k, event = held.pop(r.randrange(len(held)))
            reader = r.randrange(4)
            streams[reader].wait_event(event)
            try:
                with torch.cuda.stream(streams[reader]):
                    bad.append(wrong(x, mark))
            except torch.OutOfMemoryError:
                ooms += 1
            if reader != k:
                x.record_stream(streams[reader])
            del x
    held.clear()
    torch.cuda.synchronize()
    bad = [sum(int(b) for b in bad)]
done(sum(bad) == 0, f"3,000 blocks, {sum(bad)} wrong elements, {ooms} requests refused")
