"""A thread that has asked torch for memory has the card's context, so that it may go on with the driver: launchers of
kernels and libraries in workers' threads rely on it. For memory of any kind, and on streams of their own; also after a
context of the program's was current, which stays."""
import ctypes
import threading

from common import *

g = start(limit=2 * GIB)
cuda = driver()
problems, kept = [], []
own = ctypes.c_void_p()


def current():
    context = ctypes.c_void_p()
    status = cuda.cuCtxGetCurrent(ctypes.byref(context))
    return None if status else context.value


cuda.cuDevicePrimaryCtxRetain(ctypes.byref(own), 0)


def plain(k):
    kept.append(torch.empty((k + 3) * 20 * MIB, dtype=torch.uint8, device="cuda"))
    return kept[-1].data_ptr()


def on_a_stream(k):
    with torch.cuda.stream(torch.cuda.Stream()):
        return plain(k)


def of_a_pool(k):
    pool = torch.cuda.MemPool()
    kept.append(pool)
    with torch.cuda.use_mem_pool(pool):
        return plain(k)


def raw(k):
    pointer = torch.cuda.caching_allocator_alloc((k + 3) * 20 * MIB, 0, torch.cuda.current_stream())
    kept.append(pointer)
    return pointer


def work(way, k, said):
    try:
        pointer = way(k)
        if current() != own.value:
            said.append(f"{way.__name__}: the context is {current()}, not {own.value}")
        # The next call of a launcher.
        if hasattr(cuda, "cuMemsetD8_v2"):
            status = cuda.cuMemsetD8_v2(ctypes.c_uint64(pointer), ctypes.c_ubyte(7), ctypes.c_size_t(MIB))
            if status:
                said.append(f"{way.__name__}: cuMemsetD8 gave {status}")
    except BaseException as error:
        said.append(f"{way.__name__}: {error!r}")


for k, way in enumerate((plain, on_a_stream, of_a_pool, raw)):
    thread = threading.Thread(target=work, args=(way, k, problems))
    thread.start()
    thread.join()
    # Small ones come from what the thread before freed, on both allocators or on one: nothing is said about those.
    kept[:] = [thing for thing in kept if isinstance(thing, torch.cuda.MemPool) or isinstance(thing, int)]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    for thing in [thing for thing in kept if isinstance(thing, int)]:
        torch.cuda.caching_allocator_delete(thing)
        kept.remove(thing)
kept.clear()
for problem in problems[:6]:
    print(problem)
done(not problems, f"four ways to ask for memory in a new thread, {len(problems)} without a context")
