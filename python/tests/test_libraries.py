"""Questions of libraries and torch's own tools about memory: the CUDA sanitizer, ranges of addresses, peers."""

import pytest

TRACE = """
import os, sys, torch
if {ours}:
    import gapless
    assert gapless.enable()
import torch.cuda._gpu_trace as trace
seen = []
trace.register_callback_for_memory_allocation(lambda address: seen.append(["+", address]))
trace.register_callback_for_memory_deallocation(lambda address: seen.append(["-", address]))
of = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
def shown():
    "Each event with the number of its address."
    numbers = {{}}
    return [kind + str(numbers.setdefault(address, len(numbers))) for kind, address in seen]
"""

PROGRAMS = {
    "tensors": """
before = of(5000)
torch._C._activate_gpu_trace()
x, y = of(1000), of(30 << 20)
at = [x.data_ptr(), y.data_ptr(), before.data_ptr()]
none = of(0)
del x, none
raw = torch.cuda.caching_allocator_alloc(7 << 20)
torch.cuda.caching_allocator_delete(raw)
del y, before
assert [a for _, a in seen] == [at[0], at[1], at[0], raw, raw, at[1], at[2]], seen
""",
    "an exception goes through": """
torch._C._activate_gpu_trace()
def fails():
    x = of(1000)
    raise KeyError("the program's own")
try:
    fails()
except KeyError as error:
    assert error.args == ("the program's own",)
""",
    "a callback throws": """
def bad(address):
    raise ValueError("of the callback")
trace.register_callback_for_memory_allocation(bad)
torch._C._activate_gpu_trace()
x = of(1000)
del x
""",
    "pools and graphs": """
torch._C._activate_gpu_trace()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = of(1000)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = of(3 << 20)
del x, y
""",
    "other threads": """
import threading
torch._C._activate_gpu_trace()
def work():
    x = of(1000)
    del x
thread = threading.Thread(target=work)
thread.start()
thread.join()
""",
}


# The plain hooks have no MemPool.
CASES = [(name, "1") for name in PROGRAMS] + [(name, "0") for name in PROGRAMS if name != "pools and graphs"]


@pytest.mark.parametrize(("name", "overlay"), CASES)
def test_the_sanitizer_hears_what_it_hears_natively(real, name, overlay):
    told = []
    for ours in (False, True):
        program = TRACE.format(ours=ours) + PROGRAMS[name] + "\nprint(shown())\n"
        told.append(real.passes(program, "-Wignore", GAPLESS_OVERLAY=overlay).lines()[-1])
    assert told[0] == told[1] and "+0" in told[0]


def test_the_sanitizer_names_the_allocation_of_a_tensor(real):
    # Two streams write one tensor, and none waits for the other.
    program = (
        TRACE.format(ours=True)
        + """
import torch.cuda._sanitizer as sanitizer
sanitizer.enable_cuda_sanitizer()
x = torch.zeros(1000, device="cuda")
try:
    with torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)
except sanitizer.CUDASanitizerErrors as error:
    print(error)
"""
    )
    done = real.passes(program, "-Wignore")
    # The details go to standard error.
    assert done.out == "detected 1 errors\n"
    assert "Tensor was allocated with stack trace:" in done.err, done.err
    assert "Trace for tensor allocation not found" not in done.err


def test_a_blocks_range_of_addresses_is_that_of_a_page(real):
    # A block may lie in several pages, and each answers for itself: attack 53 asks a card, live/ranges.py prints it.
    real.passes(
        """
import ctypes, torch, gapless
gapless.enable(limit="512MiB", plans=False)
card = ctypes.CDLL("libcuda.so.1")
def range_of(address):
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    status = card.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address))
    return (base.value, base.value + size.value) if status == 0 else None
def pages(tensor):
    at, end, found = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, []
    while at < end:
        low, high = range_of(at)
        assert low <= at < high and low % (2 << 20) == 0 and high % (2 << 20) == 0
        found.append((low, high))
        at = high
    return found
of = lambda mib: torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
small = torch.empty(10, device="cuda")
assert len(pages(small)) == 1
parts = [of(30) for _ in range(16)]
assert all(pages(part)[0][0] <= part.data_ptr() for part in parts)
del parts[::2]
# A window: each of its pages answers at the window's addresses.
large = of(200)
assert len(pages(large)) > 1 and pages(large)[0][0] <= large.data_ptr() < pages(large)[0][1]
assert range_of(large.data_ptr() + (4 << 40)) is None
pool = torch.cuda.MemPool()
"""
    )


def test_free_memory_of_a_card_without_its_own_is_what_the_host_can_give(real):
    # The driver counts the kernel's file cache as used: the stand-in tells a sixty-fourth.
    program = """
import ctypes, os, torch, gapless
gapless.enable()
x = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
library = ctypes.CDLL(os.environ["GAPLESS_LIBRARY"])
stats = (ctypes.c_uint64 * 11)()
assert library.gapless_mem_stats(0, ctypes.byref(stats), ctypes.sizeof(stats)) == 0
print(stats[9], stats[10])
"""
    capacity = 64 << 20
    free, total = map(int, real.passes(program, STANDIN_CAPACITY=str(capacity)).out.split())
    assert (free, total) == (capacity - (8 << 20), capacity)
    free, total = map(int, real.passes(program, STANDIN_CAPACITY=str(capacity), STANDIN_UNIFIED="1").out.split())
    # The stand-in has no memory of its own here: all of the machine's is available.
    assert (free, total) == (capacity, capacity)
