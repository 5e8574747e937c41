"""An extension opens a pool for the requests of one stream, which is not the thread's own at that moment, or for none:
that is no capture. Requests of that stream lie in the pool, others do not; caches are emptied, and what
one stream has free serves another's request, while the pool is open, also beside a capture."""
import ctypes

import extension
from common import *

SOURCE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <string>
namespace allocator = c10::cuda::CUDACachingAllocator;
static std::string said;
template <class F> static int answer(F f) {
  try { f(); return 1; } catch (const std::exception& e) { said = e.what(); return 0; }
}
extern "C" {
const char* last() { return said.c_str(); }
int open_for(unsigned long long id, void* only) {
  return answer([&] { allocator::beginAllocateToPool(0, {9, id}, [only](cudaStream_t s) { return (void*)s == only; }); });
}
int open_for_none(unsigned long long id) {
  return answer([&] { allocator::beginAllocateToPool(0, {9, id}, [](cudaStream_t) { return false; }); });
}
int close_pool(unsigned long long id) { return answer([&] { allocator::endAllocateToPool(0, {9, id}); }); }
int release(unsigned long long id) { return answer([&] { allocator::releasePool(0, {9, id}); }); }
}
"""

start(limit=GIB)
library = extension.build(SOURCE)
library.last.restype = ctypes.c_char_p
number = ctypes.c_ulonglong
# Up to 2.12 torch's own allocator keeps everything while a pool is open.
EMPTIES = not NATIVE or hasattr(torch._C, "_cuda_memoryMetadataSupported")
problems = []


def check(ok, text):
    if not ok:
        problems.append(f"{text} ({library.last().decode(errors='replace')[:80]})")


def pool_of(x):
    for segment in torch.cuda.memory_snapshot():
        if segment["address"] <= x.data_ptr() < segment["address"] + segment["total_size"]:
            return tuple(segment["segment_pool_id"])


one, other = torch.cuda.Stream(), torch.cuda.Stream()
torch.cuda.synchronize()
for turn in range(1, 8):
    opened = library.open_for(number(turn), ctypes.c_void_p(one.cuda_stream)) if turn % 2 else library.open_for_none(number(turn))
    check(opened, "a pool cannot be opened")
    a = fill(ints(3 * MIB), 1)
    with torch.cuda.stream(one):
        b = fill(ints(3 * MIB), 2)
    with torch.cuda.stream(other):
        c = fill(ints(3 * MIB), 3)
    wanted = [(0, 0), (9, turn) if turn % 2 else (0, 0), (0, 0)]
    check([pool_of(x) for x in (a, b, c)] == wanted, f"turn {turn}: they lie in {[pool_of(x) for x in (a, b, c)]}")
    # No capture: what is free goes back.
    reserved = torch.cuda.memory_reserved()
    x = ints(100 * MIB)
    del x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    check(not EMPTIES or torch.cuda.memory_reserved() <= reserved, f"turn {turn}: {torch.cuda.memory_reserved() - reserved} bytes stay in the cache")
    y = ints(700 * MIB)
    del y
    z = None
    try:
        with torch.cuda.stream(other):
            z = ints(700 * MIB)
    except torch.OutOfMemoryError:
        EMPTIES and problems.append(f"turn {turn}: free memory of another stream does not serve a request")
    del z
    check(not library.open_for(number(turn), None), "the same pool is opened twice")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        d = torch.zeros(MIB, dtype=torch.int32, device="cuda")
    graph.replay()
    check(pool_of(d) not in ((0, 0), (9, turn)), f"what was captured lies in {pool_of(d)}")
    check(library.close_pool(number(turn)), "the pool cannot be closed")
    torch.cuda.synchronize()
    check(not library.close_pool(number(turn)), "the pool is closed twice")
    with torch.cuda.stream(one):
        e = ints(MIB)
    check(pool_of(e) == (0, 0), f"a closed pool takes requests: {pool_of(e)}")
    del a, b, c, d, e, graph
    # A refused beginning counts as a use of the pool on torch's own allocator.
    library.release(number(turn))
    if NATIVE:
        library.release(number(turn))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
check(torch.cuda.memory_allocated() <= 4096, f"{torch.cuda.memory_allocated()} bytes are held")
problems += adds_up()
done(not problems, f"{len(problems)} problems: {problems[:3]}")
