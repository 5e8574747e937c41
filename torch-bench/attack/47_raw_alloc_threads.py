"""caching_allocator_alloc on streams of one thread and caching_allocator_delete in another must keep each block's
bytes."""
import queue
import threading

from common import *

g = start(limit=2 * GIB)


class Memory:
    """Raw memory as numba or cupy show it."""

    def __init__(self, pointer, count):
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": "<i4", "data": (pointer, False), "strides": None, "version": 3,
        }


def view(pointer, count):
    return torch.as_tensor(Memory(pointer, count), device="cuda")


before = torch.cuda.memory_allocated()
lines, bad, errors = [queue.Queue(40) for _ in range(3)], [], []


def producer(k):
    r, s = rng(k), torch.cuda.Stream()
    try:
        for step in range(400):
            count = log_uniform(r, 1, 4 << 20)
            pointer = torch.cuda.caching_allocator_alloc(count * 4, stream=s)
            with torch.cuda.stream(s):
                fill(view(pointer, count), 1000 * k + step)
            lines[k].put((pointer, count, 1000 * k + step, s, s.record_event()))
    except BaseException as error:
        errors.append(repr(error)[:200])
    lines[k].put(None)


def consumer(k):
    r, kept = rng(100 + k), []
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            mine = torch.cuda.current_stream()
            while True:
                item = lines[k].get(timeout=30)
                if item is not None:
                    kept.append(item)
                while len(kept) > 8 or (item is None and kept):
                    pointer, count, mark, s, event = kept.pop(r.randrange(len(kept)))
                    mine.wait_event(event)
                    bad.append(int(wrong(view(pointer, count), mark)))  # waits on the host
                    torch.cuda.caching_allocator_delete(pointer)
                if item is None:
                    return
    except BaseException as error:
        errors.append(repr(error)[:200])


threads = [threading.Thread(target=f, args=(k,)) for k in range(3) for f in (producer, consumer)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
torch.cuda.synchronize()
after = torch.cuda.memory_allocated()
refused = ""
try:
    torch.cuda.caching_allocator_delete(0x1000)
    refused = "no error for an unknown pointer"
except RuntimeError as error:
    if "invalid device pointer" not in str(error):
        refused = str(error).splitlines()[0]
ok = not errors and sum(bad) == 0 and len(bad) == 1200 and after == before and not refused
done(ok, f"{len(bad)} blocks, {sum(bad)} wrong elements, {after - before} bytes left; {errors[:2]} {refused}")
