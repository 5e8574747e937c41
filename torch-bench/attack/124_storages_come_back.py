"""Storages that shrink to nothing after use and come back before the next, as sharded training does it, filled on one
stream and read on another, with record_stream or events alone; also inside captures, views that outlive them, and
swapped storages: every read has its own turn's bytes."""
from common import *

g = start(limit=2 * GIB)
r, bad, mistakes, problems = rng(124), [], 0, []
gather, compute = torch.cuda.Stream(), torch.cuda.current_stream()
layers = [log_uniform(r, 4096, 4 << 20) for _ in range(10)]
flat = [torch.empty(n, dtype=torch.int32, device="cuda") for n in layers]
views = [(f[: n // 3], f[n // 3 :]) for f, n in zip(flat, layers)]
for f in flat:
    f.untyped_storage().resize_(0)
freed = [None] * len(flat)
turns, end = 0, time.monotonic() + 6


def unshard(k, mark, event):
    """On the stream that gathers: memory comes back, and is filled."""
    with torch.cuda.stream(gather):
        if event is not None:
            gather.wait_event(event)  # the read of the turn before
        flat[k].untyped_storage().resize_(4 * layers[k])
        torch.arange(mark, mark + layers[k], out=flat[k])
        return gather.record_event()


while time.monotonic() < end:
    turns += 1
    order = list(range(len(flat)))
    if turns % 2:
        order.reverse()
    ahead, marks = [], {}
    for at, k in enumerate(order):
        for j in order[at : at + 2]:  # one layer ahead
            if j not in marks:
                marks[j] = r.randrange(1 << 18)
                ahead.append((j, unshard(j, marks[j], freed[j])))
        j, ready = ahead.pop(0)
        compute.wait_event(ready)
        low, high = views[j]
        bad.append((low != torch.arange(marks[j], marks[j] + low.numel(), dtype=torch.int32, device="cuda")).sum())
        out = high + 1
        bad.append((out != torch.arange(marks[j] + 1 + low.numel(), marks[j] + 1 + layers[j], dtype=torch.int32, device="cuda")).sum())
        del out
        if turns % 3 == 0:  # the other way: the allocator is told, and no stream waits
            flat[j].record_stream(compute)
            freed[j] = None
        else:  # torch's rule without it: the owner waits before its memory is used again
            freed[j] = compute.record_event()
            gather.wait_event(freed[j])
        flat[j].untyped_storage().resize_(0)
        if r.random() < 0.3:
            with torch.cuda.stream(gather):
                ints(log_uniform(r, 512, 20 * MIB)).fill_(-1)
            ints(log_uniform(r, 512, 20 * MIB)).fill_(-2)
    if turns % 20 == 0:
        mistakes += sum(int(b) for b in bad)
        bad.clear()
        torch.cuda.empty_cache()
torch.cuda.synchronize()
mistakes += sum(int(b) for b in bad)
# In a capture: memory of the graph's pool goes and comes inside of it.
x = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
x + 1
held = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()
for turn in range(5):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + turn
        z = torch.cat([y] * 4)
        y.untyped_storage().resize_(0)
        w = z * 2
        y.untyped_storage().resize_(4 * x.numel())
        y.copy_(x)
        z.resize_(100)
        z.resize_(1 << 18)
        total = w[: 1 << 18] + y
    for step in range(4):
        x.fill_(step)
        graph.replay()
        junk = [ints(log_uniform(r, 512, 20 * MIB)).fill_(-1) for _ in range(5)]
        del junk
        mistakes += int((total != 2 * (step + turn) + step).sum()) + int((y != step).sum())
    del graph, y, z, w, total
# set_ and swapped storages: Python alone decides which storage has which bytes.
names = [fill(ints(log_uniform(r, 4096, 8 * MIB)), 100 * k) for k in range(12)]
holds = {k: 100 * k for k in range(12)}
for step in range(200):
    i, j = r.sample(range(12), 2)
    way = r.randrange(4)
    if way == 0:
        a, b = names[i], names[j]
        keep = a.untyped_storage()
        sizes = (a.numel(), b.numel())
        a.set_(b.untyped_storage(), 0, (sizes[1],), (1,))
        b.set_(keep, 0, (sizes[0],), (1,))
        holds[i], holds[j] = holds[j], holds[i]
        del keep, a, b
    elif way == 1:
        n = r.randrange(1, names[i].numel() + 1)
        names[i].resize_(n)
    elif way == 2:
        names[i] = names[i].clone()
    else:
        names[i].resize_(names[i].numel() + 5000)  # a longer one: its old bytes are copied
        fill(names[i], holds[i])
    if step % 20 == 0:
        k = r.randrange(12)
        mistakes += int(wrong(names[k], holds[k]))
mistakes += sum(int(wrong(names[k], holds[k])) for k in range(12)) + int(held.sum())
problems += adds_up()
done(mistakes == 0 and not problems, f"{turns} turns, {mistakes} wrong elements {problems[:2]}")
