"""A request that fails in the middle of a capture raises there: the capture can be given up and made again, or go on
with less, and everything outside stays as it is."""
from common import *

g = start(limit=1 * GIB)
n = 1 << 20
x = torch.arange(n, dtype=torch.int32, device="cuda")
problems, mistakes, r = [], 0, rng(87)
chain = x + 1
chain = chain * 2
torch.cuda.synchronize()


def huge(size=600 * MIB):
    return torch.empty(size, dtype=torch.uint8, device="cuda")


for turn in range(8):
    kept = [fill(ints(log_uniform(r, 512, 24 * MIB)), 10 * turn + k) for k in range(8)]
    base = torch.cuda.memory_allocated()
    count = torch.cuda.memory_stats()["num_ooms"]
    graph = torch.cuda.CUDAGraph()
    y = a = b = None
    try:
        with torch.cuda.graph(graph):
            y = x + 1
            a = huge()
            b = huge()  # beyond the limit
        problems.append("two huge ones fit")
    except torch.OutOfMemoryError:
        pass
    if torch.cuda.memory_stats()["num_ooms"] != count + 1:
        problems.append("the failure is not counted once")
    if torch.cuda.is_current_stream_capturing():
        problems.append("the capture is open still")
    del y, a, b
    graph.reset()
    del graph
    torch.cuda.synchronize()
    if torch.cuda.memory_allocated() != base:
        problems.append(f"{torch.cuda.memory_allocated() - base} bytes stay of a capture that was given up")
    # Requests wait, lend and go back as before it.
    torch.cuda.empty_cache()
    whole = fill(ints(640 * MIB), turn)
    mistakes += int(wrong(whole, turn))
    del whole
    torch.cuda.empty_cache()
    # The failure is caught inside, and the capture goes on with less.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x + turn
        a = huge(400 * MIB)
        try:
            b = huge(900 * MIB)
        except torch.OutOfMemoryError:
            b = y * 2
        z = b + y
        del a, b
    for k in range(3):
        x.copy_(torch.arange(k, n + k, dtype=torch.int32, device="cuda"))
        junk = [ints(16 * MIB).fill_(-1) for _ in range(8)]
        del junk
        graph.replay()
        mistakes += int((z != 3 * (x + turn)).sum())
    mistakes += sum(int(wrong(t, 10 * turn + k)) for k, t in enumerate(kept))
    del y, z, kept
    graph.reset()
    del graph
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
problems += adds_up()
left = torch.cuda.memory_reserved() >> 20
if left > 64:
    problems.append(f"{left} MiB reserved in the end")
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"8 turns, {mistakes} wrong, {left} MiB left")
