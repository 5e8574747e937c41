"""torch, CuPy, Numba and the C functions on one pool: each runs kernels, values are compared, and what each holds is
in one account.

usage: python torch-bench/live/others.py [--rounds 3000] [--seed 1]

Needs a GPU with torch, and CuPy and Numba as far as they are to be tried: what is not installed is told and left out.
Gapless is installed, or GAPLESS_LIBRARY names the library and PYTHONPATH the folder python/. Takes less than a minute.
Exit code: 0 all checks passed, 1 one did not.
"""

import argparse
import ctypes
import random
import sys

import torch

import gapless

MIB = 1 << 20
FAILED = []


def check(name, passed, details=""):
    print(f"{'pass' if passed else 'FAIL'}  {name}{f': {details}' if details else ''}", flush=True)
    if not passed:
        FAILED.append(name)


def live():
    return gapless.stats()["allocated_bytes.all.current"]


class Torch:
    """An array of one number, on a stream of its own; `sum` reads it there."""

    name = "torch"

    def __init__(self):
        self.stream = torch.cuda.Stream()

    def make(self, count, value):
        with torch.cuda.stream(self.stream):
            return torch.full((count,), value, dtype=torch.int32, device="cuda")

    def sum(self, array):
        with torch.cuda.stream(self.stream):
            return int(array.sum(dtype=torch.int64))


class Cupy:
    name = "CuPy"

    def __init__(self):
        import cupy
        import gapless.cupy

        cupy.cuda.set_allocator(gapless.cupy.allocator)
        self.cupy, self.stream = cupy, cupy.cuda.Stream(non_blocking=True)
        self.fill = cupy.RawKernel(
            'extern "C" __global__ void fill(int *to, long long count, int value) {'
            " for (long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x; at < count; at += (long long)gridDim.x * blockDim.x) to[at] = value; }",
            "fill",
        )

    def make(self, count, value):
        with self.stream:
            array = self.cupy.empty(count, dtype="i4")
            self.fill((64,), (256,), (array, self.cupy.int64(count), self.cupy.int32(value)))
            return array

    def sum(self, array):
        with self.stream:
            return int(array.sum(dtype="i8"))


class Numba:
    name = "Numba"

    def __init__(self):
        import numpy
        from numba import cuda

        import gapless.numba

        cuda.set_memory_manager(gapless.numba.GaplessMemoryManager)
        # Two streams, so that memory that the one freed is used by the other.
        self.numpy, self.cuda, self.streams, self.turn = numpy, cuda, [cuda.stream(), cuda.stream()], 0

        @cuda.jit
        def fill(to, value):
            for at in range(cuda.grid(1), to.size, cuda.gridsize(1)):
                to[at] = value

        self.fill = fill

    def make(self, count, value):
        self.turn ^= 1
        array = self.cuda.device_array(count, self.numpy.int32)
        self.fill[64, 256, self.streams[self.turn]](array, value)
        return array

    def sum(self, array):
        self.cuda.synchronize()
        return int(array.copy_to_host().sum(dtype=self.numpy.int64))


class Plain:
    """The functions of include/gapless.h, and the driver's fills and copies."""

    name = "C"

    def __init__(self):
        from gapless import _library

        self.c, self.driver = ctypes.CDLL(_library.path()), ctypes.CDLL("libcuda.so.1")
        self.c.gapless_mem_alloc.restype = ctypes.c_void_p
        self.c.gapless_mem_alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self.c.gapless_mem_free.argtypes = [ctypes.c_void_p]
        self.driver.cuMemsetD32_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint, ctypes.c_size_t]
        self.driver.cuMemcpyDtoH_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t]

    class Memory:
        def __init__(self, c, count):
            self.c, self.count, self.at = c, count, c.gapless_mem_alloc(4 * count, 0, None)
            assert self.at, c.gapless_mem_last_code()

        def __del__(self):
            assert self.c.gapless_mem_free(self.at) == 0

    def make(self, count, value):
        memory = self.Memory(self.c, count)
        assert self.driver.cuMemsetD32_v2(memory.at, value, count) == 0
        return memory

    def sum(self, memory):
        values = (ctypes.c_int32 * memory.count)()
        assert self.driver.cuMemcpyDtoH_v2(values, memory.at, ctypes.sizeof(values)) == 0
        return sum(values)


def available():
    found = []
    for kind in (Torch, Cupy, Numba, Plain):
        try:
            found.append(kind())
        except ImportError as error:
            print(f"skip  {kind.name}: {error}")
    return found


def accounts(users):
    """Each one's bytes are in one sum, and leave it again."""
    before, held = live(), []
    for user in users:
        held.append(user.make(MIB, 3))
        check(f"{user.name} counts in gapless.stats()", live() - before == 4 * MIB * len(held), f"{(live() - before) // MIB} MiB")
        check(f"{user.name} computes", user.sum(held[-1]) == 3 * MIB)
    check("torch.cuda.memory_allocated() has them all", torch.cuda.memory_allocated() == live())
    sizes = [block["size"] for segment in torch.cuda.memory_snapshot() for block in segment["blocks"] if block["state"] == "active_allocated"]
    check("the snapshot has them all", sizes.count(4 * MIB) >= len(users))
    held.clear()
    torch.cuda.synchronize()
    check("all of it is free again", live() == before, f"{live() - before} bytes left")


def churn(users, rounds, seed):
    """Arrays of many sizes come and go: no array has another one's number in it."""
    rng, held, wrong = random.Random(seed), [], []
    for number in range(1, rounds + 1):
        user, count = rng.choice(users), rng.choice([100, 3000, 70_000, MIB // 4, MIB])
        held.append((user, number, count, user.make(count, number)))
        if len(held) > 60:
            user, value, count, array = held.pop(rng.randrange(len(held)))
            # Most are freed with work under way.
            if rng.random() < 0.3 and user.sum(array) != value * count:
                wrong.append((user.name, value))
            del array
    for user, value, count, array in held:
        if user.sum(array) != value * count:
            wrong.append((user.name, value))
    del held, array
    check(f"{rounds} arrays of {', '.join(user.name for user in users)} keep their values", not wrong, str(wrong[:5]) if wrong else "")


def limit(users):
    """One limit for all."""
    held, errors = [], 0
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(gapless.stats()["reserved_bytes.all.current"] / torch.cuda.mem_get_info()[1] + 0.01)
    for turn in range(10_000):
        try:
            held.append(users[turn % len(users)].make(4 * MIB, 1))
        except (MemoryError, torch.OutOfMemoryError, AssertionError):
            errors += 1
            if errors == len(users):
                break
    # The next request is refused: the others hold the missing memory.
    check("a limit holds for all of them together", errors == len(users), f"{len(held)} arrays of 16 MiB")
    held.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)


def capture(cupy_user):
    """CuPy inside a graph of torch's: its memory is the graph's, and is not handed out again."""
    cupy, side, graph = cupy_user.cupy, torch.cuda.Stream(), torch.cuda.CUDAGraph()
    values = torch.arange(MIB, dtype=torch.float32, device="cuda")
    result = torch.zeros_like(values)
    inner = cupy.from_dlpack(values), cupy.from_dlpack(result)
    stream = cupy.cuda.ExternalStream(side.cuda_stream)
    with stream:
        # Compiled before the capture.
        cupy.add(inner[0] * 2, 1, out=inner[1])
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side), stream:
        product = inner[0] * 2
        cupy.add(product, 1, out=inner[1])
    address = product.data.ptr
    del product
    segments = [s for s in torch.cuda.memory_snapshot() if s["address"] <= address < s["address"] + s["total_size"]]
    check("CuPy's memory in a capture is the graph's", len(segments) == 1 and tuple(segments[0]["segment_pool_id"]) != (0, 0))
    others = [torch.full((MIB,), -1.0, device="cuda") for _ in range(8)]
    result.zero_()
    values += 1
    graph.replay()
    torch.cuda.synchronize()
    check("a replayed graph with CuPy computes", bool((result == values * 2 + 1).all()) and all(bool((o == -1).all()) for o in others))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if not gapless.enable(oom_dir="off"):
        sys.exit(f"gapless is off: {gapless.disable_reason()}")
    torch.cuda.init()
    users = available()
    print(f"on {torch.cuda.get_device_name()}, torch {torch.__version__}, {', '.join(user.name for user in users)}")
    for user in users:
        # Memory that libraries allocate for themselves at their first use stays.
        user.sum(user.make(1000, 1))
    accounts(users)
    churn(users, args.rounds, args.seed)
    limit(users)
    for user in users:
        if user.name == "CuPy":
            capture(user)
    print(f"{len(FAILED)} checks failed" if FAILED else "all checks passed")
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
