"""Prints the answers of cuMemGetAddressRange on a card for Gapless's blocks: `python torch-bench/live/ranges.py`.

It prints, for a small block, a large one, one in a window and one in a private pool: the range that the driver gives
for its first byte, and how many ranges cover the block. Libraries that register memory by this range (RDMA, GDS) must
ask again behind its end if it is shorter than their buffer."""

import ctypes

import torch

import gapless

MIB = 1 << 20
gapless.enable(limit="1GiB", plans=False)
cuda = ctypes.CDLL("libcuda.so.1")


def range_of(address):
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    return (base.value, size.value) if status == 0 else status


def show(name, tensor):
    at, end, ranges = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, []
    while at < end:
        found = range_of(at)
        if isinstance(found, int):
            print(f"{name}: error {found} at byte {at - tensor.data_ptr()}")
            return
        ranges.append(found)
        at = sum(found)
    base, size = ranges[0]
    print(f"{name}: {tensor.nbytes} bytes in {len(ranges)} ranges; the first begins {tensor.data_ptr() - base} bytes before it and has {size}")


def of(mib):
    return torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")


show("small", torch.zeros(10, device="cuda"))
show("large", of(100))
parts = [of(30) for _ in range(24)]
torch.cuda.synchronize()
del parts[::2]
window = of(300)
show("window", window)
print("windows:", gapless.stats().get("gapless.windows"))
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    show("private pool", of(50))
