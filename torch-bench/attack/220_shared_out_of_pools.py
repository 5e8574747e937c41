"""Tensors of MemPools, of graphs' pools, of memory that was put together of free pieces and of pools over cuMemAlloc
are sent to another process, and their pools and graphs go after it read them: every tensor arrives, and its memory
comes back to the sender when the reader has dropped it."""
import ctypes
import gc

from common import *


def read(inbox, outbox):
    import torch

    for size in iter(inbox.get, None):
        x = inbox.get()
        outbox.put((x.numel() * 4 == size, x.device.type))
        del x
        torch.cuda.ipc_collect()
    outbox.put("over")


if __name__ == "__main__":
    import torch.multiprocessing as processes

    start(limit=2 * GIB)
    cuda = driver()

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def alloc(size, device, stream):
        pointer = ctypes.c_uint64()
        return None if cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) else pointer.value

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    def free(pointer, size, device, stream):
        cuda.cuMemFree_v2(ctypes.c_uint64(pointer))

    address = lambda function: ctypes.cast(function, ctypes.c_void_p).value
    supplier = torch._C._cuda_customAllocator(address(alloc), address(free))
    context = processes.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    reader = context.Process(target=read, args=(inbox, outbox))
    reader.start()
    problems, sent = [], 0
    base = torch.cuda.memory_allocated()
    random = rng(7)
    for turn in range(24):
        size = random.choice([20 * KIB, 3 * MIB, 17 * MIB, 46 * MIB])
        kind = ("pool", "graph", "pieces", "supplied")[turn % 4]
        owner = None
        if kind == "graph":
            owner = torch.cuda.CUDAGraph()
            with torch.cuda.graph(owner):
                x = torch.zeros(size // 4, dtype=torch.int32, device="cuda")
        elif kind == "pieces":
            pieces = [ints(4 * MIB) for _ in range(12)]
            del pieces[::2]
            size = 20 * MIB
            x = ints(size)
            del pieces
        else:
            owner = torch.cuda.MemPool(supplier) if kind == "supplied" else torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(owner):
                x = ints(size)
        inbox.put(size)
        inbox.put(x)
        seen = outbox.get(timeout=60)
        sent += 1
        if seen != (True, "cuda"):
            problems.append(f"{kind} of {size}: the reader saw {seen}")
        del x, owner
        gc.collect()
        torch.cuda.ipc_collect()
    inbox.put(None)
    if outbox.get(timeout=60) != "over":
        problems.append("the reader did not end")
    reader.join(30)
    gc.collect()
    torch.cuda.ipc_collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    if torch.cuda.memory_allocated() > base:
        problems.append(f"{torch.cuda.memory_allocated() - base} bytes are held")
    problems += adds_up()
    done(not problems and reader.exitcode == 0, f"{sent} sent, {len(problems)} problems: {problems[:3]}")
