"""Pools whose allocator is written in Python: it takes the interpreter's lock, collects garbage, frees tensors and is
out of memory at times; on Gapless it also allocates tensors of torch itself. Requests are served or refused as
natively, also in threads, and the allocator gets back what it gave, once each."""
import ctypes
import gc
import threading

from common import *

g = start(limit=2 * GIB)
cuda = driver()
given, back, problems, mode, inner = {}, [], [], ["plain"], []


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
def alloc(size, device, stream):
    if mode[0] == "full":
        return None
    if mode[0] == "collects":
        gc.collect()
    if mode[0] == "allocates":
        inner.append(torch.empty(1000, device="cuda"))
    if mode[0] == "frees" and inner:
        inner.pop()
    pointer = ctypes.c_uint64()
    if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
        return None
    if pointer.value in given:
        problems.append(f"{pointer.value:#x} is given twice")
    given[pointer.value] = size
    return pointer.value


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
def free(pointer, size, device, stream):
    if given.pop(pointer, None) is None:
        problems.append(f"{pointer:#x} came back that was not given")
    back.append(pointer)
    cuda.cuMemFree_v2(ctypes.c_uint64(pointer))
    if mode[0] == "collects":
        gc.collect()


address = lambda function: ctypes.cast(function, ctypes.c_void_p).value
allocator = torch._C._cuda_customAllocator(address(alloc), address(free))
kept = [(fill(ints(size), k), k) for k, size in enumerate((700, 5 * MIB))]
refusals = 0
for turn in range(20):
    # A tensor that torch's own allocator is asked for in here would lie in the pool that asks.
    inner += [torch.empty(1000, device="cuda") for _ in range(4)]
    for mode[0] in ("plain", "collects", "plain" if NATIVE else "allocates", "frees", "full"):
        pool = torch.cuda.MemPool(allocator)
        mine = []
        try:
            with torch.cuda.use_mem_pool(pool):
                for k in range(4):
                    mine.append((fill(ints((3 + k) * MIB), turn + k), turn + k))
        except RuntimeError:
            refusals += 1
        bad = sum(int(wrong(x, seed)) for x, seed in mine)
        if bad:
            problems.append(f"{bad} wrong elements in a pool that {mode[0]}")
        mine.clear()
        mode[0] = "plain"
        del pool
        gc.collect()
if refusals != 20:
    problems.append(f"{refusals} requests were refused, not 20")


def worker(k):
    try:
        own = torch.cuda.MemPool(allocator)
        for turn in range(30):
            with torch.cuda.use_mem_pool(own):
                x = fill(ints((1 + turn % 5) * MIB), k)
            if int(wrong(x, k)):
                problems.append(f"thread {k} has wrong elements")
            del x
        del own
    except BaseException as error:
        problems.append(f"thread {k}: {error!r}"[:200])


# One after the other: torch's own allocator calls it with its lock, which the interpreter's must not wait for.
for k in range(3):
    thread = threading.Thread(target=worker, args=(k,))
    thread.start()
    thread.join()
inner.clear()
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
if given:
    problems.append(f"{len(given)} segments did not come back")
problems += [f"{int(wrong(x, seed))} wrong elements outside" for x, seed in kept if int(wrong(x, seed))] + adds_up()
for problem in problems[:6]:
    print(problem)
done(not problems, f"{len(back)} segments came back, {refusals} requests refused, {len(problems)} problems")
