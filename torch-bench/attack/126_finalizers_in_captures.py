"""While a graph is captured, the collector runs and finalizers free tensors of other streams, tensors that other
streams use, graphs and raw memory, and make new tensors outside of the capture: the capture is whole, nothing of it
changes, and what was freed comes back after it."""
import gc
import threading
import weakref

from common import *

g = start(limit=2 * GIB)
gc.disable()
r, problems, mistakes, calls = rng(126), [], 0, {"graph": 0, "tensor": 0, "used": 0, "raw": 0, "weak": 0}
side, other = torch.cuda.Stream(), torch.cuda.Stream()
x = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
torch.cat([(x + 1) * 2, x])
torch.cuda.synchronize()
base = torch.cuda.memory_allocated()


class Cycle:
    """Only the collector ends it."""

    def __init__(self, kind, what):
        self.me, self.kind, self.what = self, kind, what

    def __del__(self):
        calls[self.kind] += 1
        if self.kind == "raw":
            torch.cuda.caching_allocator_delete(self.what)
        self.what = None


def small_graph(k):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=other):
        y = x + k
    return graph, y


def fuel(turn):
    """Things that go in the middle of the next capture."""
    graph = small_graph(turn)  # first: torch.cuda.graph collects garbage
    with torch.cuda.stream(other):
        Cycle("tensor", ints(20 * MIB).fill_(1))
    t = fill(ints(16 * MIB), turn)
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        seen = wrong(t, turn)
    t.record_stream(other)
    Cycle("used", t)
    Cycle("raw", torch.cuda.caching_allocator_alloc(5 * MIB))
    Cycle("graph", graph)
    torch.cuda.synchronize()
    return seen


kept = []
for turn in range(25):
    seen = fuel(turn)
    mistakes += int(seen)
    holder = type("Holder", (), {})()
    holder.data = ints(3 * MIB)
    weakref.finalize(holder, lambda: calls.__setitem__("weak", calls["weak"] + 1))
    holder.me = holder
    del holder, seen
    graph = torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(side):
            # Frees of other streams' memory need no call that a capture of this mode forbids.
            graph.capture_begin(capture_error_mode="relaxed")
            y = x + turn
            gc.collect()
            z = torch.cat([y, y * 2])
            if turn % 3 == 0:
                found = []

                def beside():
                    with torch.cuda.stream(torch.cuda.Stream()):
                        t = fill(ints(24 * MIB), 9)
                        found.append(t)

                thread = threading.Thread(target=beside)
                thread.start()
                thread.join(20)
            w = z - 1
            del z
            gc.collect()
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
    except RuntimeError as error:
        problems.append(f"turn {turn}: {str(error).splitlines()[0][:140]}")
        break
    torch.cuda.synchronize()
    if turn % 3 == 0:
        mistakes += int(wrong(found.pop(), 9))
    kept.append((graph, y, w, turn))
    junk = [ints(log_uniform(r, 512, 40 * MIB)).fill_(-1) for _ in range(8)]
    with torch.cuda.stream(other):
        junk += [ints(log_uniform(r, 512, 40 * MIB)).fill_(-2) for _ in range(4)]
    del junk
    for graph, y, w, k in kept:
        x.fill_(turn)
        graph.replay()
        mistakes += int((y != turn + k).sum()) + int((w[: x.numel()] != turn + k - 1).sum()) + int((w[x.numel() :] != 2 * (turn + k) - 1).sum())
    if len(kept) > 4:
        kept.pop(0)
    del graph, y, w
    torch.cuda.synchronize()
kept.clear()
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = torch.cuda.memory_allocated() - base
if left > MIB:
    problems.append(f"{left} bytes stay allocated")
if not problems and not all(calls.values()):
    problems.append(f"not every kind was ended: {calls}")
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or f"25 captures, {calls}, {mistakes} wrong elements")
