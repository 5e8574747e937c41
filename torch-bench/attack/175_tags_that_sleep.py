"""vLLM's way to sleep: pools for weights and for the cache, over an allocator of the program's own that maps pages of
the driver, unmaps the pages of one tag or of both, and maps new ones at the same addresses. Graphs that were captured
before read both; weights wake first and are loaded anew while the cache still sleeps; the trainer takes the memory
meanwhile."""
import ctypes
import gc
import shutil
import subprocess
import tempfile

from common import *

SOURCE = r"""
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>
#include <pthread.h>
typedef unsigned long long ptr;
typedef struct { int kind, id; } where;
typedef struct { int type, handles; where at; void *win; unsigned char compression, rdma; unsigned short usage; unsigned char reserved[4]; } prop;
typedef struct { where at; int flags; } access_to;
extern int cuMemAddressReserve(ptr*, size_t, size_t, ptr, unsigned long long), cuMemAddressFree(ptr, size_t);
extern int cuMemCreate(unsigned long long*, size_t, const prop*, unsigned long long), cuMemRelease(unsigned long long);
extern int cuMemMap(ptr, size_t, size_t, unsigned long long, unsigned long long), cuMemUnmap(ptr, size_t);
extern int cuMemSetAccess(ptr, size_t, const access_to*, size_t);
static struct { ptr at; size_t size; unsigned long long page; int tag; } held[512];
static int count, failed;
int tag_now;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int put(int k) {
    prop p; memset(&p, 0, sizeof p); p.type = 1; p.at.kind = 1;
    access_to a = {{1, 0}, 3};
    if (cuMemCreate(&held[k].page, held[k].size, &p, 0)) return 1;
    if (cuMemMap(held[k].at, held[k].size, 0, held[k].page, 0)) return 2;
    return cuMemSetAccess(held[k].at, held[k].size, &a, 1) ? 3 : 0;
}
void* my_alloc(ssize_t size, int device, void* stream) {
    size_t whole = ((size_t)size + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    pthread_mutex_lock(&lock);
    int k = count++;
    held[k].size = whole; held[k].tag = tag_now;
    int bad = k >= 511 || cuMemAddressReserve(&held[k].at, whole, 2 << 20, 0, 0) || put(k);
    pthread_mutex_unlock(&lock);
    return bad ? 0 : (void*)held[k].at;
}
void my_free(void* p, ssize_t size, int device, void* stream) {
    pthread_mutex_lock(&lock);
    for (int k = 0; k < count; k++) if (held[k].at == (ptr)p) {
        if (held[k].page) { cuMemUnmap(held[k].at, held[k].size); cuMemRelease(held[k].page); }
        cuMemAddressFree(held[k].at, held[k].size);
        held[k].at = 0; held[k].page = 0;
        pthread_mutex_unlock(&lock);
        return;
    }
    failed++;
    pthread_mutex_unlock(&lock);
}
/* The pages of a tag go, or come. */
long my_sleep(int tag) {
    long bytes = 0;
    for (int k = 0; k < count; k++) if (held[k].at && held[k].page && held[k].tag == tag) {
        if (cuMemUnmap(held[k].at, held[k].size) || cuMemRelease(held[k].page)) failed++;
        held[k].page = 0; bytes += held[k].size;
    }
    return bytes;
}
long my_wake(int tag) {
    long bytes = 0;
    for (int k = 0; k < count; k++) if (held[k].at && !held[k].page && held[k].tag == tag) { if (put(k)) failed++; bytes += held[k].size; }
    return bytes;
}
long my_held(void) { long all = 0; for (int k = 0; k < count; k++) if (held[k].at) all++; return all; }
int my_failures(void) { return failed; }
"""
cc = shutil.which("gcc") or shutil.which("cc")
if cc is None:
    skip("no C compiler")
g = start(limit=2 * GIB)
folder = tempfile.mkdtemp()
src, lib = os.path.join(folder, "a.c"), os.path.join(folder, "libtags.so")
open(src, "w").write(SOURCE)
ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
subprocess.run([cc, "-shared", "-fPIC", "-O1", "-o", lib, src], check=True)
theirs = torch.cuda.memory.CUDAPluggableAllocator(lib, "my_alloc", "my_free")
c = ctypes.CDLL(lib)
for name in ("my_sleep", "my_wake", "my_held"):
    getattr(c, name).restype = ctypes.c_long
tag_now = ctypes.c_int.in_dll(c, "tag_now")
WEIGHTS, CACHE, ROWS, WIDTH = 1, 2, 4096, 1024
r, mistakes, problems = rng(175), 0, []
pools = {tag: torch.cuda.MemPool(theirs.allocator()) for tag in (WEIGHTS, CACHE)}


def load(version):
    for k, w in enumerate(weights):
        fill(w, 1000 * version + k)


def inside(tag):
    tag_now.value = tag
    return torch.cuda.use_mem_pool(pools[tag])


with inside(WEIGHTS):
    weights = [ints(size) for size in (700, 3 * MIB, 21 * MIB, 40 * MIB, 100 * KIB, 9 * MIB)]
with inside(CACHE):
    cache = torch.zeros(ROWS, WIDTH, dtype=torch.int32, device="cuda")
    slots = torch.arange(64, device="cuda")
load(0)
first = torch.zeros(64, dtype=torch.int32, device="cuda")


def step(size):
    rows = weights[3][: size * WIDTH].view(size, WIDTH) + first[:size, None]
    cache[slots[:size]] = rows
    return cache[slots[:size]].sum(1)


step(64)
torch.cuda.synchronize()
graphs, shared = {}, torch.cuda.graph_pool_handle()
for size in (64, 16, 3):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=shared):
        out = step(size)
    graphs[size] = (graph, out)
version = 0


def check():
    global mistakes
    for size, (graph, out) in graphs.items():
        add = r.randrange(1000)
        first.fill_(add)
        graph.replay()
        at = torch.arange(size * WIDTH, dtype=torch.int64, device="cuda").view(size, WIDTH)
        want = (at + 1000 * version + 3 + add).sum(1)
        mistakes += int((out.to(torch.int32) != want.to(torch.int32)).sum())
    mistakes += sum(int(wrong(w, 1000 * version + k)) for k, w in enumerate(weights))


check()
for turn in range(8):
    torch.cuda.synchronize()
    tags = [WEIGHTS, CACHE] if turn % 3 else [CACHE]
    backup = [w.to("cpu") for w in weights] if WEIGHTS in tags and turn % 2 else None
    for tag in tags:
        if c.my_sleep(tag) < 16 * MIB:
            problems.append("less slept than there is")
    torch.cuda.empty_cache()
    big = fill(ints(1200 * MIB if turn % 3 else 400 * MIB), turn)  # the trainer
    mistakes += int(wrong(big, turn))
    if turn % 4 == 1:
        try:
            ints(3 * GIB)
            problems.append("3 GiB were served")
        except torch.OutOfMemoryError:
            pass
    del big
    torch.cuda.empty_cache()
    if WEIGHTS in tags:
        c.my_wake(WEIGHTS)
        if backup is None:
            version += 1
            load(version)
        else:
            for w, b in zip(weights, backup):
                w.copy_(b)
        mistakes += sum(int(wrong(w, 1000 * version + k)) for k, w in enumerate(weights))
    c.my_wake(CACHE)
    with inside(CACHE):  # the cache's other tensors are made anew
        cache.zero_()
        torch.arange(64, out=slots)
        more = ints(2 * MIB)
    del more
    check()
problems += adds_up()
del graphs, weights, cache, slots, pools
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
out = graph = w = b = backup = None
gc.collect()
torch.cuda.empty_cache()
if c.my_held() != 0 or c.my_failures():
    problems.append(f"{c.my_held()} segments were not given back, {c.my_failures()} calls failed")
done(mistakes == 0 and not problems, f"8 sleeps by tags, {mistakes} wrong elements {problems[:2]}")
