"""A long run whose sizes drift: each turn everything is a little larger, then smaller, with a few blocks that stay for
hundreds of turns, on three streams. Bytes are whole, what is reserved stays within the limit, and in the end nearly all
of the limit can be had in one piece once the rest is gone."""
from common import *

LIMIT = 4 * GIB
g = start(limit=LIMIT)
r, problems, mistakes = rng(151), [], 0
streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
torch.cuda.synchronize()
base, long_lived, bad = torch.cuda.memory_allocated(), [], []
for turn in range(1500):
    scale = 1 + (turn % 500 if turn // 500 % 2 == 0 else 500 - turn % 500) / 125
    live = []
    for k in range(12):
        s = streams[k % 3]
        size = int((1 + k * k) * 300 * KIB * scale) + r.randrange(4096)
        with torch.cuda.stream(s):
            x = ints(size)
            if k % 4 == turn % 4:
                fill(x, k)
                bad.append(wrong(x, k))
            live.append(x)
            del x
    if turn % 25 == 0:
        s = streams[r.randrange(3)]
        with torch.cuda.stream(s):
            mark = r.randrange(1 << 18)
            long_lived.append((fill(ints(log_uniform(r, 64 * KIB, 12 * MIB)), mark), mark, s))
        if len(long_lived) > 20:
            x, mark, s = long_lived.pop(r.randrange(20))
            with torch.cuda.stream(s):
                bad.append(wrong(x, mark))
            del x
    while live:
        live.pop(r.randrange(len(live)))
    if len(bad) > 300:
        torch.cuda.synchronize()
        mistakes += sum(int(b) for b in bad)
        bad = []
        if torch.cuda.max_memory_reserved() > LIMIT:
            problems.append(f"{torch.cuda.max_memory_reserved() // MIB} MiB were reserved")
    if turn % 300 == 299:
        problems += adds_up()
torch.cuda.synchronize()
for x, mark, s in long_lived:
    with torch.cuda.stream(s):
        bad.append(wrong(x, mark))
torch.cuda.synchronize()
mistakes += sum(int(b) for b in bad)
bad, long_lived, x = [], [], None
torch.cuda.synchronize()
if torch.cuda.memory_allocated() != base:
    problems.append(f"{torch.cuda.memory_allocated() - base} bytes stay")
try:
    ints(LIMIT - 128 * MIB)
except torch.OutOfMemoryError:
    problems.append("the limit cannot be had in one piece")
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"1,500 turns, {mistakes} wrong elements")
