"""Memory that goes out and comes in by DLPack and by __cuda_array_interface__: capsules that are never taken, that are
taken in other threads, twice, on other streams; views that outlive their makers; owners whose finalizers give raw
memory back and allocate. Bytes are the host's, every owner ends once, and nothing is left."""
import gc
import threading
import weakref

from common import *

g = start(limit=1 * GIB)
r, problems, mistakes, memory = rng(177), [], 0, torch.cuda.memory
side = torch.cuda.Stream()
side_2 = torch.cuda.Stream(priority=-1)
ended = []


class Owner:
    """Raw memory with numbers in it, given back by a finalizer that also asks for memory."""

    def __init__(self, count, mark):
        self.pointer = memory.caching_allocator_alloc(4 * count)
        self.count, self.mark = count, mark
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<i4", "data": (self.pointer, False), "version": 3,
                                         "strides": None, "stream": 1}  # fmt: skip
        torch.as_tensor(self, device="cuda").copy_(torch.arange(mark, mark + count, dtype=torch.int32))

    def __del__(self):
        ended.append(self.mark)
        memory.caching_allocator_delete(self.pointer)
        torch.empty(1000, device="cuda")


def holds(x, mark, at=0):
    return int((x.cpu() != torch.arange(mark + at, mark + at + x.numel(), dtype=torch.int32)).sum())


def fresh(count, mark):
    return torch.arange(mark, mark + count, dtype=torch.int32).to("cuda")


torch.as_tensor(Owner(10, 0), device="cuda")
gc.collect()
ended.clear()
torch.cuda.synchronize()
base = torch.cuda.memory_allocated()
for step in range(120):
    count, mark = log_uniform(r, 1, 1 << 20), r.randrange(1 << 18)
    way = step % 10
    if way == 0:  # a capsule that is never taken
        capsule = fresh(count, mark).__dlpack__()
        del capsule
    elif way == 1:  # taken on another stream, after the maker is gone
        x = fresh(count, mark)
        with torch.cuda.stream(side):
            y = torch.from_dlpack(x)
            z = y.clone()
        side.synchronize()
        del x
        mistakes += holds(z, mark) + holds(y, mark)
        del y, z
    elif way == 2:  # taken in another thread
        capsule, box = fresh(count, mark).__dlpack__(), []
        t = threading.Thread(target=lambda: box.append(torch.utils.dlpack.from_dlpack(capsule)))
        t.start()
        t.join()
        del capsule
        mistakes += holds(box[0], mark)
        box.clear()
    elif way == 3:  # taken twice
        capsule = torch.utils.dlpack.to_dlpack(fresh(count, mark))
        x = torch.utils.dlpack.from_dlpack(capsule)
        try:
            torch.utils.dlpack.from_dlpack(capsule)
            problems.append("a capsule was taken twice")
        except (RuntimeError, ValueError):
            pass
        mistakes += holds(x, mark)
        del x, capsule
    elif way == 4:  # an owner whose view outlives it
        owner = Owner(count, mark)
        gone = weakref.ref(owner)
        x = torch.as_tensor(owner, device="cuda")
        del owner
        cut = x[count // 2 :]
        del x
        if gone() is None:
            problems.append("an owner ended under its view")
        mistakes += holds(cut, mark, count // 2)
        del cut
        if gone() is not None or ended[-1:] != [mark]:
            problems.append("an owner did not end with its view")
    elif way == 5:  # in a cycle, ended by the collector in the middle of a request
        owner = Owner(count, mark)
        owner.me = [owner]
        del owner
        if step % 30 == 5:
            gc.collect()
    elif way == 6:  # streams that are named by number
        x = fresh(count, mark)
        for stream in (-1, None, 1, side.cuda_stream):
            y = torch.utils.dlpack.from_dlpack(x.__dlpack__(stream=stream))
            torch.cuda.synchronize()
            mistakes += holds(y, mark)
        del x, y
    elif way == 7:  # strided, empty and single ones
        x = fresh(2 * count, mark)[::2]
        y = torch.from_dlpack(x)
        if y.stride() != x.stride() and count > 1:
            problems.append("other strides")
        mistakes += int((y.cpu() != torch.arange(mark, mark + 2 * count, 2, dtype=torch.int32)).sum())
        torch.from_dlpack(torch.empty(0, 3, device="cuda"))
        del x, y
    elif way == 8:  # copies that are asked for, and refused ones
        x = fresh(count, mark)
        y = torch.from_dlpack(x, copy=True) if step % 20 == 8 else x.clone()
        x.fill_(0)
        torch.cuda.synchronize()
        mistakes += holds(y, mark) if y.data_ptr() != x.data_ptr() else 1
        try:
            torch.ones(3, device="cuda", requires_grad=True).__dlpack__()
            problems.append("a tensor with gradients was exported")
        except (RuntimeError, BufferError):
            pass
        del x, y
    else:  # freed on a stream that runs late
        owner = Owner(count, mark)
        x = torch.as_tensor(owner, device="cuda")
        side_2.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_2):
            y = x.clone()
        x.record_stream(side_2)  # not of torch's allocator by its deleter: natively nothing happens
        side_2.synchronize()
        del owner, x
        mistakes += holds(y, mark)
        del y
gc.collect()
torch.cuda.synchronize()
if len(ended) != 36:
    problems.append(f"{len(ended)} of 36 owners ended")
left = torch.cuda.memory_allocated() - base
if left:
    problems.append(f"{left} bytes stay")
problems += adds_up()
done(mistakes == 0 and not problems, f"{mistakes} wrong elements, {len(ended)} owners ended {problems[:3]}")
