"""Storages that are resized, set, swapped and passed on as DLPack by a random program hold what the same program
holds on the host."""
from common import *

g = start(limit=2 * GIB)
r, cells, mistakes, acts = rng(54), [], 0, {}
other = torch.cuda.Stream()


def fresh():
    n = log_uniform(r, 1, 2 << 20)
    host = torch.arange(r.randrange(1 << 20), (1 << 20) + n, dtype=torch.int32)[:n].clone()
    return [host.to("cuda"), host]


for step in range(800):
    act = r.choice(("new", "resize", "shrink", "empty", "set", "swap", "dlpack", "view", "free", "data"))
    acts[act] = acts.get(act, 0) + 1
    if len(cells) < 6 or act == "new" and len(cells) < 40:
        cells.append(fresh())
        continue
    at = r.randrange(len(cells))
    x, h = cells[at]
    if act == "resize":  # grows; what was there stays
        old, n = x.numel(), x.numel() + log_uniform(r, 1, 1 << 20)
        x.untyped_storage().resize_(4 * (x.storage_offset() + n))
        x.resize_(n)
        h = torch.cat([h, torch.full((n - old,), step, dtype=torch.int32)])
        x[old:] = step
        cells[at] = [x, h]
    elif act == "shrink":
        n = max(1, x.numel() // 2)
        x.resize_(n)
        cells[at] = [x, h[:n].clone()]
    elif act == "empty":  # as sharded training does between uses
        x = x.clone()
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(4 * x.numel())
        x.copy_(h)
        cells[at] = [x, h]
    elif act == "set":
        y = torch.empty(0, dtype=torch.int32, device="cuda")
        skipped = r.randrange(x.numel())
        y.set_(x.untyped_storage(), x.storage_offset() + skipped, (x.numel() - skipped,), (1,))
        cells[at] = [y, h[skipped:].clone()]
    elif act == "swap":
        b = r.randrange(len(cells))
        if b != at:
            x, y = x.clone(), cells[b][0].clone()
            torch.utils.swap_tensors(x, y)  # x is now what y was
            cells[at], cells[b] = [x, cells[b][1]], [y, h]
            y = None
    elif act == "dlpack":  # to a consumer on another stream, which outlives the producer
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            y = torch.from_dlpack(x)
            y = y + 1 if r.random() < 0.5 else y
            z = y.clone()
        torch.cuda.current_stream().wait_stream(other)
        mistakes += int(not torch.equal(z.cpu(), h + (0 if y.data_ptr() == x.data_ptr() else 1)))
        if y.data_ptr() == x.data_ptr():
            cells[at] = x = None
            cells[at] = [y.clone(), h]
        y = z = None
    elif act == "view":
        cut = r.randrange(x.numel())
        cells[at] = [x[: cut + 1], h[: cut + 1].clone()]
    elif act == "free":
        cells.pop(at)
    elif act == "data":
        y = fresh()
        holder = torch.nn.Parameter(x, requires_grad=False)
        holder.data = y[0]
        cells[at] = [holder.data, y[1]]
        del holder
    x = h = None
    if step % 25 == 0:
        mistakes += sum(int(not torch.equal(x.cpu(), h)) for x, h in cells)
    if step % 200 == 0:
        torch.cuda.empty_cache()
mistakes += sum(int(not torch.equal(x.cpu(), h)) for x, h in cells)
done(mistakes == 0 and not adds_up(), f"{mistakes} cells differ from the host; {acts}")
