"""`torch.cuda.MemPool(allocator)`: an allocator of the program's own supplies the memory, and sees the calls that it
sees from torch's own allocator."""

import subprocess

import pytest

from test_snapshot import both

# A supplier that notes its requests in order, and refuses those larger than `most`.
SOURCE = r"""
#include <stddef.h>
#include <sys/types.h>
extern int cuMemAlloc_v2(unsigned long long*, size_t);
extern int cuMemFree_v2(unsigned long long);
struct call { long size, device, stream, address; };
static struct call calls[4096];
static int count;
long most = 1L << 60;
static void note(long size, long device, void* stream, void* address) {
  if (count < 4096) calls[count++] = (struct call){size, device, (long)stream, (long)address};
}
int take(struct call* out) { int n = count; for (int i = 0; i < n; i++) out[i] = calls[i]; count = 0; return n; }
void set_most(long bytes) { most = bytes; }
void* supply(ssize_t size, int device, void* stream) {
  unsigned long long found = 0;
  void* address = size > most || cuMemAlloc_v2(&found, (size_t)size) ? 0 : (void*)found;
  note(size, device, stream, address);
  return address;
}
void take_back(void* address, ssize_t size, int device, void* stream) {
  note(-size, device, stream, address);
  cuMemFree_v2((unsigned long long)address);
}
"""

START = """
import ctypes, sys
LIBRARY = {library!r}
theirs = ctypes.CDLL(LIBRARY)
class Call(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("size", "device", "stream", "address")]
def calls():
    "Each call since the last look: bytes (less than none: given back), the stream, and the number of the address."
    room = (Call * 4096)()
    return [[c.size, c.device, bool(c.stream), number(c.address)] for c in room[: theirs.take(room)]]
NUMBERS = {{}}
def number(address):
    return NUMBERS.setdefault(address, len(NUMBERS)) if address else None
from torch.cuda.memory import CUDAPluggableAllocator, MemPool
supplier = CUDAPluggableAllocator(LIBRARY, "supply", "take_back")
def shown(pool):
    "Its segments: bytes, and blocks by size and state."
    segments = sorted(pool.snapshot(), key=lambda s: number(s["address"]))
    return [[s["total_size"], s["allocated_size"], [[b["size"], b["state"]] for b in s["blocks"]]] for s in segments]
"""


@pytest.fixture(scope="module")
def start(tmp_path_factory, bench):
    folder = tmp_path_factory.mktemp("supplier")
    (folder / "supplier.c").write_text(SOURCE)
    library = folder / "libsupplier.so"
    driver = str(bench.standin / "libcuda.so.1")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, folder / "supplier.c", driver], check=True)
    return START.format(library=str(library))


def same(real, program, **environment):
    native, ours = both(real, program, **environment)
    assert ours == native
    return ours


def test_a_supplier_sees_the_calls_that_native_makes(real, start):
    found = same(
        real,
        start
        + """
found = []
pool = MemPool(supplier.allocator())
with torch.cuda.use_mem_pool(pool):
    kept = [of(size) for size in (100, 600_000, 600_000, 600_000, 3 * MIB, 9 * MIB, 12 * MIB, 5 * MIB + 3)]
found += [calls(), shown(pool), torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]
outside = of(4 * MIB)
found.append([calls(), len(pool.snapshot())])
del kept[1:6]
with torch.cuda.use_mem_pool(pool):
    kept += [of(size) for size in (1 * MIB, 8 * MIB, 2 * MIB, 40 * MIB)]
found += [calls(), shown(pool)]
torch.cuda.empty_cache()
found += [calls(), shown(pool)]
side = torch.cuda.Stream()
with torch.cuda.use_mem_pool(pool), torch.cuda.stream(side):
    kept.append(of(2 * MIB))
found += [calls(), shown(pool)]
kept.clear()
torch.cuda.empty_cache()
found += [calls(), torch.cuda.memory_allocated()]
del pool
found += [calls(), torch.cuda.memory_allocated()]
print(json.dumps(found))
""",
    )
    assert found[0][0][0] == 2 << 20, "the first call is for small requests"
    assert found[-2], "what was supplied went back"


def test_tensors_outlive_their_pool_and_pools_each_other(real, start):
    same(
        real,
        start
        + """
found = []
pools = [MemPool(supplier.allocator()) for _ in range(3)]
kept = []
for pool in pools:
    with torch.cuda.use_mem_pool(pool):
        kept.append(of(3 * MIB))
with torch.cuda.use_mem_pool(pools[0]):
    kept.append(of(MIB))
    with torch.cuda.use_mem_pool(pools[1]):
        kept.append(of(2 * MIB))
    kept.append(of(2 * MIB))
found += [calls(), [shown(pool) for pool in pools]]
del pools[1], pool
found.append(calls())
del kept[1], kept[0]
torch.cuda.empty_cache()
found.append(calls())
del pools[0], kept[1:]
torch.cuda.empty_cache()
# Native goes through pools in the order of a hash table.
found.append(sorted(calls()))
pools.clear()
kept.clear()
torch.cuda.empty_cache()
found += [sorted(calls()), torch.cuda.memory_allocated()]
print(json.dumps(found))
""",
    )


def test_a_supplier_without_memory_is_asked_twice_and_then_it_is_an_error(real, start):
    same(
        real,
        start
        + """
found = []
pool = MemPool(supplier.allocator())
theirs.set_most(ctypes.c_long(20 * MIB))
with torch.cuda.use_mem_pool(pool):
    kept = [of(12 * MIB)]
    calls()
    try:
        kept.append(of(30 * MIB))
        found.append("no error")
    except torch.OutOfMemoryError:
        found.append("error")
    found.append({c[0] for c in calls()} == {30 * MIB})
    kept.append(of(MIB))
found += [shown(pool), torch.cuda.memory_allocated()]
print(json.dumps(found))
""",
    )


def test_whole_segments_and_pools_that_help_others(real, start):
    same(
        real,
        start
        + """
found = []
whole = MemPool(supplier.allocator(), no_split=True)
with torch.cuda.use_mem_pool(whole):
    kept = [of(2 * MIB), of(2 * MIB)]
found += [calls(), shown(whole)]
del kept[0]
with torch.cuda.use_mem_pool(whole):
    kept.append(of(15 * MIB))
found += [calls(), shown(whole)]
spare = MemPool(supplier.allocator(), use_on_oom=True)
with torch.cuda.use_mem_pool(spare):
    x = of(60 * MIB)
del x
found.append(calls())
try:
    kept.append(of(50 * MIB))
    found.append("served")
except torch.OutOfMemoryError:
    found.append("error")
found += [calls(), len(shown(spare))]
print(json.dumps(found))
""",
        STANDIN_CAPACITY=str(130 << 20),
    )


def test_what_a_pool_left_behind_serves_others_before_they_fail(real, start):
    found = same(
        real,
        start
        + """
pool = MemPool(supplier.allocator())
with torch.cuda.use_mem_pool(pool):
    x = of(60 * MIB)
del pool
found = [calls()]
del x
kept = of(100 * MIB)
found += [calls(), torch.cuda.memory_reserved()]
print(json.dumps(found))
""",
        STANDIN_CAPACITY=str(130 << 20),
    )
    assert found[1], "the supplier got its memory back"


def test_threads_share_a_pool(real, start):
    real.passes(
        start.replace("import ctypes, sys", "import ctypes, sys, json, threading, torch, gapless\ngapless.enable()\nMIB = 1 << 20")
        + """
pool = MemPool(supplier.allocator())
failures = []
# torch refuses a pool that takes requests already, so they open it by turns. Frees come at any time.
gate = threading.Lock()
def work(seed):
    try:
        stream = torch.cuda.Stream() if seed % 2 else torch.cuda.current_stream()
        with torch.cuda.stream(stream):
            kept = []
            for turn in range(200):
                with gate, torch.cuda.use_mem_pool(pool):
                    kept.append(torch.empty((turn * seed * 7919) % (6 * MIB) + 1, dtype=torch.uint8, device="cuda"))
                if turn % 3:
                    kept.pop(0)
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not failures, failures
torch.cuda.synchronize()
del pool
torch.cuda.empty_cache()
balance = {}
for size, _, _, address in calls():
    balance[address] = balance.get(address, 0) + size
assert balance and not any(balance.values()), balance
assert torch.cuda.memory_allocated() == 0
"""
    )


def test_a_supplier_that_hands_out_torchs_own_memory_is_refused(real, start):
    # Natively such a supplier asks its own pool again, without end.
    done = real.passes(
        "import torch, gapless\ngapless.enable()\n"
        + start
        + """
import gc, os
of = lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
ours = CUDAPluggableAllocator(os.environ["GAPLESS_LIBRARY"], "gapless_alloc", "gapless_free")
pool = MemPool(ours.allocator())
for size in (30 << 20, 5000):
    try:
        with torch.cuda.use_mem_pool(pool):
            of(size)
    except RuntimeError as error:
        assert not isinstance(error, torch.OutOfMemoryError)
        print(str(error).splitlines()[0])
# What it took went back, and other pools, and the default one, serve on.
assert torch.cuda.memory_allocated() == 0
other = MemPool(supplier.allocator())
with torch.cuda.use_mem_pool(other):
    kept = of(5000)
outside = of(30 << 20)
del kept, outside, pool, other
gc.collect()
torch.cuda.empty_cache()
print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
"""
    )
    lines = done.lines()
    assert len(lines) == 3 and lines[2] == "0 0", lines
    assert all("which it has from torch's current allocator" in line for line in lines[:2]), lines
