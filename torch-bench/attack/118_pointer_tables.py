"""Kernels that read tables of addresses, whose tensors are freed right after the launch, on one stream and over streams
with record_stream; and foreach functions and grouped products, which do the same inside: all read what was there."""
from common import *

g = start(limit=2 * GIB)
r, mistakes, bad, ways = rng(118), 0, [], {}
try:
    import triton
    import triton.language as tl

    @triton.jit
    def gather(table, lengths, out, total, BLOCK: tl.constexpr):
        """out[i] = the sum over all tensors of their element i."""
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        sums = tl.zeros((BLOCK,), dtype=tl.int32)
        for k in range(total):
            source = tl.load(table + k).to(tl.pointer_type(tl.int32))
            length = tl.load(lengths + k)
            sums += tl.load(source + at, mask=at < length, other=0)
        tl.store(out + at, sums)

    probe = torch.zeros(1024, dtype=torch.int32, device="cuda")
    table = torch.tensor([probe.data_ptr()], device="cuda")
    gather[(1,)](table, torch.tensor([1024], device="cuda"), probe, 1, BLOCK=1024)
    torch.cuda.synchronize()
except Exception as error:  # no triton, or no compiler for it
    gather = None
    ways["no triton"] = str(error).splitlines()[0][:60] if str(error) else type(error).__name__
side = torch.cuda.Stream()
n, torch_sum = 1 << 18, {}
end = time.monotonic() + 8
steps = 0
while time.monotonic() < end:
    steps += 1
    count, first = r.randrange(4, 24), r.randrange(1000)
    across = steps % 2 == 0
    home = torch.cuda.current_stream()
    tensors = [fill(ints(4 * r.randrange(n, 3 * n)), first + k) for k in range(count)]
    if gather is not None:
        # The table itself comes from pinned memory that goes at once, too.
        addresses = torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64).pin_memory()
        where = side if across else home
        if across:
            side.wait_stream(home)
        with torch.cuda.stream(where):
            table = addresses.to("cuda", non_blocking=True)
            lengths = torch.tensor([t.numel() for t in tensors], device="cuda")
            out = torch.empty(n, dtype=torch.int32, device="cuda")
            busy(0.2)
            gather[(n // 1024,)](table, lengths, out, count, BLOCK=1024)
            del table, lengths
        if across:
            for t in tensors:
                t.record_stream(side)
        copies = [t[:8].clone() for t in tensors] if steps % 5 == 0 else []
        del tensors, addresses
        t = None
        # The next allocation writes over the freed memory.
        junk = [ints(4 * r.randrange(n, 3 * n)).fill_(-1) for _ in range(count)]
        with torch.cuda.stream(side):
            more = [ints(4 * r.randrange(n, 3 * n)).fill_(-2) for _ in range(count // 2)]
        del junk, more
        with torch.cuda.stream(where):
            index = torch.arange(n, dtype=torch.int32, device="cuda")
            want = index * count + sum(first + k for k in range(count))
            bad.append((out != want).sum())
            del index, want, out
        ways["gather"] = ways.get("gather", 0) + 1
    else:
        del tensors
        t = None
    # foreach functions, whose lists go right after.
    lists = [[torch.full((r.randrange(1, 60000),), float(first + k), device="cuda") for k in range(120)] for _ in range(2)]
    lists[1] = [torch.full_like(t, 2.0) for t in lists[0]]
    sums = torch._foreach_add(lists[0], lists[1], alpha=3)
    torch._foreach_mul_(sums, 2.0)
    norms = torch.stack(torch._foreach_norm(sums, float("inf")))
    del lists, t
    junk = [torch.full((60000,), -1.0, device="cuda") for _ in range(60)]
    del junk
    bad.append((norms != torch.arange(120, device="cuda") * 2 + 2 * (first + 6)).sum())
    bad.append(sum((s != 2 * (first + k + 6)).sum() for k, s in enumerate(sums)))
    del sums, norms
    ways["foreach"] = ways.get("foreach", 0) + 1
    if steps % 10 == 0:
        mistakes += sum(int(b) for b in bad)
        bad.clear()
        torch.cuda.empty_cache()
torch.cuda.synchronize()
mistakes += sum(int(b) for b in bad)
problems = adds_up()
done(mistakes == 0 and not problems, f"{steps} steps {ways}, {mistakes} wrong elements {problems[:1]}")
