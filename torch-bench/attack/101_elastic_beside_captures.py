"""Elastic tensors grow and shrink in one thread, and their pool's thread gives pages back, while another thread makes
thousands of short captures: no capture is ended from outside, and both have their bytes. (Gapless only)"""
import threading

from common import *

if NATIVE:
    skip("elastic tensors are Gapless'")
g = start(limit=2 * GIB)
stop, errors, moves, mistakes, problems = threading.Event(), [], [0], [], []
rows, width = 4096, 65536  # 64 rows of int32 in a page of 16 MiB


def grower(k):
    r = rng(k)
    try:
        cache = g.elastic((rows, width), torch.int32)
        stream, size = torch.cuda.Stream(), 0
        with torch.cuda.stream(stream):
            while not stop.is_set():
                more = r.randrange(1, 200)
                cache.grow(more)
                at = r.randrange(size, size + more)
                cache.tensor[at].fill_(at + k)
                size += more
                if r.random() < 0.6:
                    mistakes.append(int((cache.tensor[at] != at + k).sum()))
                stream.synchronize()
                if size > 300:
                    less = r.randrange(size - 100, size)
                    cache.shrink(less)
                    size -= less
                moves[0] += 1
    except BaseException as error:
        errors.append(f"grower: {repr(error)[:160]}")


x = torch.zeros(1 << 16, dtype=torch.int32, device="cuda")
side = torch.cuda.Stream()
x + 1
(x != 1).sum()
torch.cuda.synchronize()
threads = [threading.Thread(target=grower, args=(k,)) for k in range(2)]
for t in threads:
    t.start()
captures, kept, bad = 0, [], 0
end = time.monotonic() + 8
while time.monotonic() < end and not problems and not errors:
    graph = torch.cuda.CUDAGraph()
    try:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # Calls of other threads do not concern a capture of this mode, by CUDA's rules.
            graph.capture_begin(capture_error_mode="thread_local")
            y = x + captures
            if captures % 3 == 0:
                time.sleep(0.0005)
            y = y * 2
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
    except RuntimeError as error:
        problems.append(f"capture {captures}: {str(error).splitlines()[0][:120]}")
        break
    kept.append((graph, y, captures))
    captures += 1
    del graph, y
    if len(kept) > 6:
        graph, y, k = kept.pop(0)
        graph.replay()
        bad += int((y != 2 * k).sum())
        del graph, y
stop.set()
for t in threads:
    t.join(30)
if not problems:
    torch.cuda.synchronize()
    bad += sum(mistakes)
ok = not problems and not errors and bad == 0
done(ok, f"{captures} captures beside {moves[0]} moves, {bad} wrong elements; {(problems + errors)[:2]}")
