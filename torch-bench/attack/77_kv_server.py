"""An inference server's memory: a cache of blocks, one graph for each batch size in one pool, and sequences that are
swapped out to pinned memory and back on a side stream. Every sum equals the host's."""
from common import *

g = start(limit=3 * GIB)
r, side, main = rng(77), torch.cuda.Stream(), torch.cuda.current_stream()
blocks, slots, width, most = 4096, 16, 64, 24  # block 0 stays empty: tables are padded with it
cache = torch.zeros(blocks, slots, width, dtype=torch.int32, device="cuda")
lane = torch.arange(width, dtype=torch.int32, device="cuda")
batches = (16, 8, 4, 2, 1)  # the largest is captured first


class Shape:
    """The graph of one batch size with its inputs and its output."""

    def __init__(self, size, pool):
        self.at = torch.zeros(3, size, dtype=torch.int64, device="cuda")  # block, slot, token
        self.table = torch.zeros(size, most, dtype=torch.int64, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            self.step()
        main.wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool):
            self.out = self.step()

    def step(self):
        block, slot, token = self.at
        cache[block, slot] = (token[:, None] * 3 + lane).int()
        found = cache[self.table.flatten()].view(*self.table.shape, slots, width)
        return found.long().sum((1, 2, 3))


pool = torch.cuda.graph_pool_handle()
shapes = {size: Shape(size, pool) for size in batches}
cache.zero_()
free, live, away, mistakes, steps, swaps = list(range(1, blocks)), [], [], 0, 0, 0


class Sequence:
    def __init__(self):
        self.table, self.tokens, self.host, self.event = [], [], None, None

    def want(self):
        return sum(3 * width * token + width * (width - 1) // 2 for token in self.tokens)


def swap_out(seq):
    side.wait_stream(main)
    with torch.cuda.stream(side):
        part = cache[torch.tensor(seq.table, device="cuda")]
        seq.host = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
        seq.host.copy_(part, non_blocking=True)
        cache[torch.tensor(seq.table, device="cuda")] = 0
        seq.event = side.record_event()
    main.wait_stream(side)
    free.extend(seq.table)
    seq.table = []


def swap_in(seq):
    seq.table = [free.pop(r.randrange(len(free))) for _ in range(seq.host.shape[0])]
    with torch.cuda.stream(side):
        side.wait_event(seq.event)
        part = seq.host.to("cuda", non_blocking=True)  # of the side stream, used on the main one
    main.wait_stream(side)
    cache[torch.tensor(seq.table, device="cuda")] = part
    part.record_stream(main)
    seq.host_kept, seq.host = seq.host, None  # the copy may still be under way


end = time.monotonic() + 7
while time.monotonic() < end and mistakes == 0:
    while len(live) < 14:
        live.append(away.pop(0) if away and r.random() < 0.6 else Sequence())
        if live[-1].host is not None:
            swap_in(live[-1])
    size = next(b for b in reversed(batches) if b >= r.randrange(1, 15))
    chosen = r.sample(live, min(size, len(live)))
    shape = shapes[size]
    at, table = torch.zeros(3, size, dtype=torch.int64), torch.zeros(size, most, dtype=torch.int64)
    for k, seq in enumerate(chosen):
        token = r.randrange(1, 1000)
        if len(seq.tokens) % slots == 0:
            seq.table.append(free.pop(r.randrange(len(free))))
        at[:, k] = torch.tensor([seq.table[-1], len(seq.tokens) % slots, token])
        seq.tokens.append(token)
        table[k, : len(seq.table)] = torch.tensor(seq.table)
    # Unused rows write zeros into a block that no table has: the last slot of a spare one.
    spare = free[0]
    at[0, len(chosen) :] = spare
    shape.at.copy_(at.pin_memory(), non_blocking=True)
    shape.table.copy_(table.pin_memory(), non_blocking=True)
    shape.graph.replay()
    sums = shape.out.tolist()
    if len(chosen) < size:
        cache[spare] = 0
    mistakes += sum(int(total != seq.want()) for total, seq in zip(sums, chosen))
    steps += 1
    for seq in [s for s in live if len(s.tokens) >= most * slots]:
        live.remove(seq)
        cache[torch.tensor(seq.table, device="cuda")] = 0
        free.extend(seq.table)
    if r.random() < 0.25 and live:
        seq = live.pop(r.randrange(len(live)))
        if seq.tokens:
            swap_out(seq)
            away.append(seq)
            swaps += 1
    if steps % 100 == 0:
        torch.cuda.empty_cache()
torch.cuda.synchronize()
done(mistakes == 0 and steps > 20, f"{steps} steps, {swaps} swaps, {mistakes} wrong sums, {len(away)} away")
