"""Requests of a page, a byte less and a byte more, for all sizes at which allocators change their minds, tens of
thousands of one byte and of none, views up to the last byte of a storage: neighbours keep their bytes, and nearly all
of the limit can be had again in one piece."""
from common import *

LIMIT = 3 * GIB
g = start(limit=LIMIT)
r, problems, mistakes = rng(111), [], 0


def says(ok, text):
    if not ok:
        problems.append(text)


def raw(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


edges = [512, 4096, 64 * KIB, 1 * MIB, 2 * MIB, 4 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB]
steps = (-513, -512, -1, 0, 1, 511, 512, 513)
sizes = [size + step for size in edges for step in steps if size + step > 0]
# Every block is filled to its last byte with a value of its own, so a write into another one shows.
for turn in range(3):
    r.shuffle(sizes)
    blocks = []
    for k, size in enumerate(sizes):
        if sum(b.numel() for b in blocks) + size > 2300 * MIB:
            break
        b = raw(size)
        says(b.data_ptr() % 512 == 0, f"{size} bytes lie at {b.data_ptr():#x}")
        b.fill_((k + turn) % 251)
        blocks.append(b)
    for k, b in enumerate(blocks):
        mistakes += int((b != (k + turn) % 251).sum())
    # The last bytes of each, through views that reach to the end of the storage.
    for k, b in enumerate(blocks):
        size = b.numel()
        tail = torch.as_strided(b, (min(64, size),), (1,), size - min(64, size))
        tail.fill_(252)
        if size >= 4:
            ends = torch.as_strided(b, (2,), (size - 1,), 0)
            ends.fill_(253)
    for k, b in enumerate(blocks):
        size, inner = b.numel(), b[1 : max(1, b.numel() - 64)]
        mistakes += int((inner != (k + turn) % 251).sum()) if size > 65 else 0
        mistakes += int(b[-1] != (253 if size >= 4 else 252))
    # A view keeps a whole storage; a byte of each stays behind to break what is free into pieces.
    views = [b[-1:] for b in blocks[::3]]
    whole = sum(b.numel() for b in blocks[::3])
    del blocks, b, inner, tail, ends
    says(torch.cuda.memory_allocated() >= whole, "a view does not keep its storage")
    mistakes += sum(int(v != 253) for v in views if v.untyped_storage().nbytes() >= 4)
    del views
# One byte, ten thousand times, and nothing at all, ten thousand times.
before = torch.cuda.memory_allocated()
ones = [torch.full((1,), k % 256, dtype=torch.uint8, device="cuda") for k in range(10000)]
says(len({o.data_ptr() for o in ones}) == 10000, "two tensors of one byte are one")
none = [torch.empty((0, 5), device="cuda") for _ in range(10000)]
says(all(t.data_ptr() == 0 for t in none), "nothing has an address")
held = torch.cuda.memory_allocated() - before
says(held == 10000 * 512, f"10,000 bytes take {held}")
seen = torch.cat(ones).cpu()
mistakes += int((seen != (torch.arange(10000) % 256).to(torch.uint8)).sum())
del ones[::2], none
mistakes += int((torch.cat(ones).cpu() != (torch.arange(1, 10000, 2) % 256).to(torch.uint8)).sum())
del ones, seen
torch.cuda.synchronize()
# In pieces of many sizes up to the brim, every other one freed, then all; then nearly everything at once.
for turn in range(3):
    pieces = []
    try:
        while True:
            pieces.append(raw(log_uniform(r, 4 * KIB, 90 * MIB)))
    except torch.OutOfMemoryError:
        pass
    del pieces[::2]
    torch.cuda.synchronize()
    del pieces
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    room = LIMIT - torch.cuda.memory_reserved() - 64 * MIB
    try:
        big = fill(ints(room // 4 * 4), turn)
        mistakes += int((big[:: 1 << 16] != torch.arange(0, big.numel(), 1 << 16, device="cuda") + turn).sum())
        del big
    except torch.OutOfMemoryError as error:
        problems.append(f"{room >> 20} MiB of {LIMIT >> 20} cannot be had: {str(error)[:100]}")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:4]) or f"{len(sizes)} sizes, {mistakes} wrong bytes")
