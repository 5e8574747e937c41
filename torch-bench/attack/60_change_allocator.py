"""torch.cuda.change_current_allocator after the allocator was used raises, and everything goes on as before."""
import ctypes.util

from common import *

g = start(limit=1 * GIB)
x = fill(ints(100 * MIB), 5)
name = torch.cuda.get_allocator_backend()
libc = ctypes.util.find_library("c")
if libc is None:
    skip("no C library found")
problems = []
for _ in range(3):
    other = torch.cuda.memory.CUDAPluggableAllocator(libc, "malloc", "free")  # never called
    try:
        torch.cuda.memory.change_current_allocator(other)
        problems.append("the allocator was changed under a live tensor")
        break
    except RuntimeError as error:
        if "swap an already initialized allocator" not in str(error):
            problems.append(str(error).splitlines()[0][:100])
    del other
    y = fill(ints(200 * MIB), 6)
    if int(wrong(x, 5)) or int(wrong(y, 6)):
        problems.append("wrong bytes afterwards")
    del y
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        z = fill(ints(4 * MIB), 8)
    if int(wrong(z, 8)):
        problems.append("wrong bytes in a pool afterwards")
    del z, pool
if torch.cuda.get_allocator_backend() != name:
    problems.append("the backend has another name")
if torch.cuda.memory_allocated() != 100 * MIB:
    problems.append(f"{torch.cuda.memory_allocated()} bytes allocated in the end")
try:
    ints(2 * GIB)
    problems.append("the limit is gone")
except torch.OutOfMemoryError:
    pass
done(not problems, "; ".join(problems[:3]) or "refused three times, and nothing changed")
