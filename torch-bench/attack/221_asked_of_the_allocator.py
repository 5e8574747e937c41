"""An extension asks torch's allocator itself, as torch's C++ does: memory on streams of its own, deleters, copies,
announced streams, the base of an address, the largest request, statistics, pools' uses, trackers. Answers and refusals
are those of torch's own allocator, and in the end nothing is held."""
import ctypes

import extension
from common import *

SOURCE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <atomic>
#include <string>
namespace allocator = c10::cuda::CUDACachingAllocator;
static thread_local std::string said;
static std::atomic<long long> heard[16];
template <class F> static long long answer(F f) {
  said = "";
  try { return (long long)f(); } catch (const std::exception& e) { said = e.what(); return -1; }
}
extern "C" {
const char* last() { return said.c_str(); }
long long raw(size_t n) { return answer([&] { return allocator::raw_alloc(n); }); }
long long raw_on(size_t n, void* s) { return answer([&] { return allocator::raw_alloc_with_stream(n, (cudaStream_t)s); }); }
long long drop(void* p) { return answer([&] { allocator::raw_delete(p); return 0; }); }
long long base(void* p, size_t* n) { return answer([&] { return allocator::getBaseAllocation(p, n); }); }
long long largest(size_t n) { return answer([&] { allocator::cacheInfo(0, &n); return n; }); }
long long allocated(int d) { return answer([&] { return allocator::getDeviceStats(d).allocated_bytes[0].current; }); }
long long fraction(double f) { return answer([&] { allocator::setMemoryFraction(f, 0); return 0; }); }
long long track() {
  return answer([&] { allocator::attachAllocatorTraceTracker([](const auto& e) { heard[(int)e.action_]++; }); return 0; });
}
long long times(int action) { return heard[action]; }
long long owned(size_t n) {
  return answer([&] {
    auto* own = allocator::get();
    auto one = own->allocate(n);
    bool fits = own->raw_deleter() == one.get_deleter() && own->is_simple_data_ptr(one) && one.get_context() == one.get();
    auto two = own->clone(one.get(), n);
    auto side = c10::cuda::getStreamFromPool();
    allocator::recordStream(one, side);
    allocator::recordStream(c10::DataPtr(), side);
    auto none = own->allocate(0);
    return fits && two.get() != one.get() && none.get() == nullptr && own->initialized();
  });
}
}
"""

start(limit=GIB)
library = extension.build(SOURCE)
for name in ("raw", "raw_on", "drop", "base", "largest", "allocated", "fraction", "track", "times", "owned"):
    getattr(library, name).restype = ctypes.c_longlong
library.last.restype = ctypes.c_char_p
pointer, size, out = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t(0)
problems = []


def expect(what, ok):
    if not ok:
        problems.append(f"{what} ({library.last().decode(errors='replace')[:80]})")


held = torch.cuda.memory_allocated()
side = torch.cuda.Stream()
for turn in range(20):
    expect("owned memory", library.owned(size(1000 + 3 * MIB * (turn % 3))) == 1)
    one, two = library.raw(size(5 * MIB)), library.raw_on(size(700), pointer(side.cuda_stream))
    expect("raw memory", one > 0 and two > 0)
    expect("nothing", library.raw(size(0)) == 0 and library.drop(pointer(0)) == 0)
    expect("its base", library.base(pointer(one), ctypes.byref(out)) > 0 and out.value >= 5 * MIB)
    expect("a base inside", library.base(pointer(one + 1024), ctypes.byref(out)) == -1)
    expect("a base of nothing", library.base(pointer(4096), ctypes.byref(out)) == -1)
    expect("statistics", library.allocated(0) == torch.cuda.memory_allocated())
    expect("another card", library.allocated(9) == -1)
    expect("a wrong fraction", library.fraction(ctypes.c_double(1.5)) == -1)
    expect("a free inside", library.drop(pointer(one + 512)) == -1)
    expect("frees", library.drop(pointer(one)) == 0 and library.drop(pointer(two)) == 0)
    expect("a second free", library.drop(pointer(one)) == -1)
    expect("the largest", library.largest(size(0)) > 100 * MIB and library.largest(size(1 << 45)) == 1 << 45)
    torch.cuda.synchronize()
library.track()
x = ints(3 * MIB)
del x
expect("trackers", all(library.times(action) > 0 for action in (0, 1, 2)))
torch.cuda.empty_cache()
expect(f"{torch.cuda.memory_allocated() - held} bytes are held", torch.cuda.memory_allocated() <= held)
problems += adds_up()
done(not problems, f"{len(problems)} problems: {problems[:3]}")
