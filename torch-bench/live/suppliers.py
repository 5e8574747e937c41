"""Memory pools with allocators of the program's own, on a card: memory that sleeps, NCCL's registered buffers.

    python torch-bench/live/suppliers.py [--cycles 200] [--native]

The first part is the pattern of vLLM's sleep mode: an allocator maps physical memory behind addresses of its own,
weights live there, and between uses their memory goes back to the card while the addresses stay. A sixth of the weights
is compared byte by byte after each waking. The second part makes a communicator of one rank, puts tensors into NCCL's
own memory, registers the pool, and reduces. Each part prints one line of JSON; the exit status is 1 if one is wrong.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import torch

MIB = 1 << 20

SOURCE = r"""
#include <cuda.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#define MOST 256
static struct { CUdeviceptr addr; size_t size; CUmemGenericAllocationHandle page; int awake; } held[MOST];
static long calls, failures;
static int wake_one(int i) {
  CUmemAllocationProp what; memset(&what, 0, sizeof what);
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED; what.location.type = CU_MEM_LOCATION_TYPE_DEVICE; what.location.id = 0;
  CUmemAccessDesc who; memset(&who, 0, sizeof who);
  who.location = what.location; who.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (cuMemCreate(&held[i].page, held[i].size, &what, 0)) return 0;
  if (cuMemMap(held[i].addr, held[i].size, 0, held[i].page, 0) || cuMemSetAccess(held[i].addr, held[i].size, &who, 1)) return 0;
  return held[i].awake = 1;
}
static void sleep_one(int i) {
  if (cuMemUnmap(held[i].addr, held[i].size) || cuMemRelease(held[i].page)) failures++;
  held[i].awake = 0;
}
void* supply(ssize_t size, int device, void* stream) {
  calls++;
  for (int i = 0; i < MOST; i++) if (!held[i].addr) {
    held[i].size = ((size_t)size + (2 << 20) - 1) / (2 << 20) * (2 << 20);
    if (cuMemAddressReserve(&held[i].addr, held[i].size, 0, 0, 0)) return 0;
    if (wake_one(i)) return (void*)held[i].addr;
    cuMemAddressFree(held[i].addr, held[i].size); held[i].addr = 0;
    return 0;
  }
  return 0;
}
void take_back(void* at, ssize_t size, int device, void* stream) {
  calls++;
  for (int i = 0; i < MOST; i++) if (held[i].addr == (CUdeviceptr)at) {
    if (held[i].awake) sleep_one(i);
    cuMemAddressFree(held[i].addr, held[i].size); held[i].addr = 0;
    return;
  }
  failures++;
}
void sleep_all(void) { cuCtxSynchronize(); for (int i = 0; i < MOST; i++) if (held[i].addr && held[i].awake) sleep_one(i); }
void wake_all(void) { for (int i = 0; i < MOST; i++) if (held[i].addr && !held[i].awake && !wake_one(i)) failures++; }
long bytes(void) { long n = 0; for (int i = 0; i < MOST; i++) if (held[i].addr) n += (long)held[i].size; return n; }
long count_failures(void) { return failures; }
"""


def library(folder):
    source, built = os.path.join(folder, "supplier.c"), os.path.join(folder, "libsupplier.so")
    with open(source, "w", encoding="utf-8") as file:
        file.write(SOURCE)
    include = os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/include"
    # The driver that torch has loaded.
    with open("/proc/self/maps", encoding="utf-8") as maps:
        driver = next(line.split()[-1] for line in maps if "/libcuda.so" in line)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-I", include, "-o", built, source, driver], check=True)
    found = ctypes.CDLL(built)
    found.bytes.restype = found.count_failures.restype = ctypes.c_long
    return built, found


def sleeping(cycles):
    with tempfile.TemporaryDirectory() as folder:
        path, theirs = library(folder)
        supplier = torch.cuda.memory.CUDAPluggableAllocator(path, "supply", "take_back")
        pool = torch.cuda.MemPool(supplier.allocator())
        generator = torch.Generator().manual_seed(7)
        sizes = [int(x) for x in torch.randint(1, 48 * MIB, (24,), generator=generator)]
        with torch.cuda.use_mem_pool(pool):
            weights = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
        saved = [torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).pin_memory() for size in sizes]
        for weight, copy in zip(weights, saved):
            weight.copy_(copy)
        segments = pool.snapshot()
        shown = sum(segment["total_size"] for segment in segments)
        addresses = [weight.data_ptr() for weight in weights]
        wrong, freed = 0, []
        for cycle in range(cycles):
            # Work beside it: activations of the default pool, which grow while the weights sleep.
            before = torch.cuda.mem_get_info()[0]
            theirs.sleep_all()
            freed.append(torch.cuda.mem_get_info()[0] - before)
            other = torch.full((64 * MIB + cycle * 4096,), float(cycle), device="cuda")
            theirs.wake_all()
            for weight, copy in zip(weights, saved):
                weight.copy_(copy, non_blocking=True)
            total = float(other[-1]) + float(other[0])
            wrong += total != 2.0 * cycle
            wrong += sum(not torch.equal(weight.cpu(), copy) for weight, copy in zip(weights[cycle % 6 :: 6], saved[cycle % 6 :: 6]))
            del other
        wrong += addresses != [weight.data_ptr() for weight in weights]
        held = theirs.bytes()
        del weights, weight, pool
        torch.cuda.empty_cache()
        answer = {
            "part": "sleeping",
            "cycles": cycles,
            "segments": len(segments),
            "supplied_bytes": held,
            "shown_bytes": shown,
            "least_freed_bytes": min(freed),
            "left_bytes": theirs.bytes(),
            "failures": theirs.count_failures(),
            "wrong": wrong,
        }
        answer["ok"] = not wrong and shown == held and answer["left_bytes"] == 0 and answer["failures"] == 0 and min(freed) >= held * 0.9
        return answer


def registered():
    import torch.distributed as dist

    with tempfile.NamedTemporaryFile() as meeting:
        dist.init_process_group("nccl", init_method=f"file://{meeting.name}.store", rank=0, world_size=1, device_id=torch.device("cuda", 0))
        group = dist.distributed_c10d._get_default_group()
        backend = group._get_backend(torch.device("cuda"))
        try:
            supplier = backend.mem_allocator
        except RuntimeError as error:
            dist.destroy_process_group()
            return {"part": "nccl", "ok": True, "not_supported_here": str(error)}
        pool = torch.cuda.MemPool(supplier)
        with torch.cuda.use_mem_pool(pool):
            x = torch.arange(4 * MIB, dtype=torch.float32, device="cuda")
            y = torch.ones(3 * MIB, device="cuda")
        backend.register_mem_pool(pool)
        for _ in range(20):
            dist.all_reduce(x)
            dist.all_reduce(y)
        torch.cuda.synchronize()
        fine = bool((x == torch.arange(4 * MIB, dtype=torch.float32, device="cuda")).all()) and float(y.sum()) == 3 * MIB
        backend.deregister_mem_pool(pool)
        segments = len(pool.snapshot())
        del x, y, pool
        torch.cuda.empty_cache()
        dist.destroy_process_group()
        return {"part": "nccl", "segments": segments, "ok": fine and segments > 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--native", action="store_true", help="torch's own allocator")
    options = parser.parse_args()
    if not options.native:
        import gapless

        gapless.enable()
    torch.cuda.init()
    is_fine = True
    for part in (lambda: sleeping(options.cycles), registered):
        answer = part()
        print(json.dumps({"allocator": "native" if options.native else "gapless", **answer}), flush=True)
        is_fine &= answer["ok"]
    sys.exit(not is_fine)


if __name__ == "__main__":
    main()
