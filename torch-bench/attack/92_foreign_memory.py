"""Memory that the program takes from the driver itself, plain, in order of a stream, managed and pinned, beside
tensors: copies between both are right, and frees of one never touch the other."""
import ctypes

from common import *

g = start(limit=2 * GIB)
cuda = driver()
needed = ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemAllocAsync", "cuMemFreeAsync", "cuMemAllocManaged", "cuMemHostAlloc", "cuMemcpyAsync")
if any(not hasattr(cuda, name) for name in needed):
    skip("this driver lacks calls")
P, S = ctypes.c_void_p, ctypes.c_size_t
r, problems, mistakes, moved = rng(92), [], 0, 0
streams = [torch.cuda.Stream(), torch.cuda.Stream()]
foreign = []


def call(name, *args):
    status = getattr(cuda, name)(*args)
    if status:
        problems.append(f"{name} gave {status}")
    return status


def take(kind, size, s):
    out = P()
    if kind == "plain":
        call("cuMemAlloc_v2", ctypes.byref(out), S(size))
    elif kind == "ordered":
        call("cuMemAllocAsync", ctypes.byref(out), S(size), P(s.cuda_stream))
    elif kind == "managed":
        call("cuMemAllocManaged", ctypes.byref(out), S(size), ctypes.c_uint(1))
    else:
        call("cuMemHostAlloc", ctypes.byref(out), S(size), ctypes.c_uint(0))
    return out.value


def drop(kind, pointer, s):
    if kind == "ordered":
        call("cuMemFreeAsync", P(pointer), P(s.cuda_stream))
    elif kind == "pinned":
        call("cuMemFreeHost", P(pointer))
    else:
        call("cuMemFree_v2", P(pointer))


def copy(there, here, size, s):
    call("cuMemcpyAsync", P(there), P(here), S(size), P(s.cuda_stream))


kept = []
for step in range(260):
    s = streams[step % 2]
    with torch.cuda.stream(s):
        size = 4 * (log_uniform(r, 4 * KIB, 24 * MIB) // 4)
        x = fill(ints(size), step)
        kind = r.choice(("plain", "ordered", "managed", "pinned"))
        pointer = take(kind, size, s)
        if not pointer:
            break
        copy(pointer, x.data_ptr(), size, s)
        del x  # the copy is in the order of its stream
        foreign.append((kind, pointer, size, step, s))
        kept.append((fill(ints(log_uniform(r, 512, 8 * MIB)), step), step, s))
    if len(foreign) > 8:
        kind, pointer, size, mark, s = foreign.pop(r.randrange(8))
        with torch.cuda.stream(s):
            y = ints(size).fill_(-1)
            copy(y.data_ptr(), pointer, size, s)
            mistakes += int(wrong(y, mark))
            moved += size
            del y
        s.synchronize()
        drop(kind, pointer, s)
    if len(kept) > 20:
        x, mark, s = kept.pop(r.randrange(20))
        with torch.cuda.stream(s):
            mistakes += int(wrong(x, mark))
        del x
    if step % 60 == 59:
        torch.cuda.empty_cache()
    # A free of memory that is not the allocator's, and one that is not there, are refused and change nothing.
    if step % 50 == 10:
        held = torch.cuda.memory_allocated()
        try:
            torch.cuda.caching_allocator_delete(pointer)
            problems.append("a foreign pointer was freed")
        except RuntimeError:
            pass
        if torch.cuda.memory_allocated() != held:
            problems.append("a refused free changed the books")
    if len(problems) > 3:
        break
torch.cuda.synchronize()
for kind, pointer, _, _, s in foreign:
    drop(kind, pointer, s)
for x, mark, s in kept:
    with torch.cuda.stream(s):
        mistakes += int(wrong(x, mark))
torch.cuda.synchronize()
problems += adds_up()
done(mistakes == 0 and not problems, f"{moved >> 20} MiB came back, {mistakes} wrong elements {problems[:3]}")
