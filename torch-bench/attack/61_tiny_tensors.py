"""Half a million small tensors, freed and made again in random order on two streams, all keep their values."""
from common import *

g = start(limit=2 * GIB)
r, count = rng(61), 500_000
side = torch.cuda.Stream()
sizes = [1 + (k * 7919) % 190 for k in range(1000)]


def make(numbers):
    """A tensor of `number` for each, at the places of a batch."""
    new = [torch.empty(sizes[k % 1000], dtype=torch.int32, device="cuda") for k in numbers]
    torch._foreach_zero_(new)
    torch._foreach_add_(new, [int(k) for k in numbers])
    return new


cells, number = {}, 0
while number < count:
    with torch.cuda.stream(side if (number // 5000) % 2 else torch.cuda.default_stream()):
        numbers = range(number, number + 5000)
        cells.update(zip(numbers, make(numbers)))
    number += 5000
    if number % 50000 == 0:  # a third goes, in any order
        torch.cuda.synchronize()
        for k in r.sample(list(cells), len(cells) // 3):
            del cells[k]
torch.cuda.synchronize()
mistakes, keys = 0, sorted(cells)
for at in range(0, len(keys), 10000):
    part = keys[at : at + 10000]
    got = torch.cat([cells[k] for k in part])
    lengths = torch.tensor([sizes[k % 1000] for k in part])
    mistakes += int((got.cpu() != torch.repeat_interleave(torch.tensor(part, dtype=torch.int32), lengths)).sum())
live = sum(-(-4 * sizes[k % 1000] // 512) * 512 for k in keys)
del got
books = torch.cuda.memory_allocated()
r.shuffle(keys)
for k in keys:
    del cells[k]
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = (torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
ok = mistakes == 0 and books == live and left[0] == 0 and left[1] <= 4 * MIB
done(ok, f"{len(keys)} lived to the end, {mistakes} wrong elements, {books} bytes booked for {live}, in the end {left}")
