"""Memory that sleeps, on a card: how fast, how whole, and beside torch_memory_saver if that is installed.

    python torch-bench/live/serving.py [--gigabytes 16] [--cycles 200] [--saver FOLDER]

Every line of JSON is one figure with what is wanted beside it. Bytes are compared on the card. --saver names a folder
that has torch_memory_saver unpacked; its run is a process of its own, with torch's own allocator below.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time

import torch

MIB, GIB = 1 << 20, 1 << 30
FAILED = []


def say(name, value, wanted=None, ok=None, **more):
    if ok is False:
        FAILED.append(name)
    print(json.dumps({"what": name, "value": round(value, 4) if isinstance(value, float) else value, "wanted": wanted, "ok": ok} | more), flush=True)


def free():
    return torch.cuda.mem_get_info()[0]


def weights(total, seed=1):
    """Tensors of the sizes of a Llama: large matrices, and a few small ones between."""
    generator = torch.Generator("cuda")
    generator.manual_seed(seed)
    sizes, made = [117 * MIB, 117 * MIB, 117 * MIB, 33 * MIB, 33 * MIB, 8 * MIB, 8 * MIB, 8192, 8192], []
    held = 0
    while held < total:
        for size in sizes:
            made.append(torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda", generator=generator))
            held += size
    return made


def digest(tensors):
    total = torch.zeros((), dtype=torch.int64, device="cuda")
    for at, tensor in enumerate(tensors):
        whole = tensor[: tensor.numel() // 8 * 8].view(torch.int64)
        total = total * 31 + whole.sum() + (whole[::97] * (at + 1)).sum()
    return int(total)


def plain_copy(size=4 * GIB):
    """GB/s of a plain pinned copy, each way."""
    host, card = torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.empty(size, dtype=torch.uint8, device="cuda")
    speeds = []
    for to, source in ((host, card), (card, host)):
        best = 0
        for _ in range(3):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best = max(best, size / 1e9 / (time.perf_counter() - begin))
        speeds.append(best)
    return speeds


class Place(ctypes.Structure):
    """The driver's CUmemAccessDesc; its first half is a CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int), ("flags", ctypes.c_ulonglong)]


class Kind(ctypes.Structure):
    """The driver's CUmemAllocationProp: pinned memory of card 0."""

    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("place", ctypes.c_int * 2), ("windows", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


def driver_floor(total, page):
    """Seconds in which the driver alone takes `total` bytes away, and puts them back, in pages of `page` bytes."""
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name, *words):
        code = getattr(driver, name)(*words)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    kind, place = Kind(type=1, handles=1, place=(1, 0)), Place(1, 0, 3)
    base, size = ctypes.c_ulonglong(), ctypes.c_size_t(total)
    call("cuMemAddressReserve", ctypes.byref(base), size, ctypes.c_size_t(0), ctypes.c_ulonglong(0), ctypes.c_ulonglong(0))
    down, up = [], []
    for _ in range(4):
        handles = [ctypes.c_ulonglong() for _ in range(total // page)]
        begin = time.perf_counter()
        for at, handle in enumerate(handles):
            call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(page), ctypes.byref(kind), ctypes.c_ulonglong(0))
            call("cuMemMap", ctypes.c_ulonglong(base.value + at * page), ctypes.c_size_t(page), ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        call("cuMemSetAccess", base, size, ctypes.byref(place), ctypes.c_size_t(1))
        up.append(time.perf_counter() - begin)
        call("cuMemsetD8_v2", base, ctypes.c_ubyte(1), size)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call("cuMemUnmap", base, size)
        for handle in handles:
            call("cuMemRelease", handle)
        down.append(time.perf_counter() - begin)
    call("cuMemAddressFree", base, size)
    return sorted(down)[1], sorted(up)[1]


def timed(call):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    result = call()
    return result, time.perf_counter() - begin


def speed(args):
    import gapless

    out_speed, in_speed = plain_copy()
    say("plain pinned copy out", out_speed)
    say("plain pinned copy in", in_speed)
    torch.cuda.empty_cache()
    total = args.gigabytes * GIB
    with gapless.region("weights"):
        tensors = weights(total)
    before, places = digest(tensors), [tensor.data_ptr() for tensor in tensors]
    _, seconds = timed(lambda: gapless.prepare_host(gapless.regions()[0].held))
    say("prepare, s/GiB", seconds / args.gigabytes, 0.54, seconds / args.gigabytes < 0.2)
    reserved, there = torch.cuda.memory_reserved(), free()
    slept, woke = [], []
    for _ in range(10):
        moved, seconds = timed(lambda: gapless.sleep("weights"))
        slept.append(moved.copied_bytes / 1e9 / seconds)
        given = free() - there
        moved, seconds = timed(lambda: gapless.wake("weights"))
        woke.append(moved.copied_bytes / 1e9 / seconds)
    say("sleep, GB/s, first and tenth", [round(slept[0], 1), round(slept[-1], 1)], round(0.9 * out_speed, 1), max(slept[0], 0) >= 0.9 * out_speed and slept[0] >= 0.9 * slept[-1])
    say("wake, GB/s, first and tenth", [round(woke[0], 1), round(woke[-1], 1)], round(0.9 * in_speed, 1), woke[-1] >= 0.9 * in_speed and woke[0] >= 0.9 * woke[-1])
    say("given back to the driver, GiB", given / GIB, args.gigabytes, given >= 0.98 * total)
    say("bytes and addresses after 10 cycles", digest(tensors) == before and places == [tensor.data_ptr() for tensor in tensors], True, digest(tensors) == before)
    say("reserved after waking", torch.cuda.memory_reserved() - reserved, 0, torch.cuda.memory_reserved() <= reserved)
    with gapless.region("weights", keep="discard"):
        pass
    downs, ups = [], []
    for _ in range(6):
        downs.append(timed(lambda: gapless.sleep("weights"))[1])
        ups.append(timed(lambda: gapless.wake("weights"))[1])
    say("without copies: sleep, ms", [round(1e3 * one, 2) for one in downs], 5, sorted(downs)[3] <= 5e-3)
    say("without copies: wake, ms", [round(1e3 * one, 2) for one in ups], 5, sorted(ups)[3] <= 5e-3)
    for page in (GIB // 8, GIB, 4 * GIB, total):
        down, up = driver_floor(total, page)
        say(f"the driver alone, pages of {page / GIB:g} GiB: away and back, ms", [round(1e3 * down, 2), round(1e3 * up, 2)])
    with gapless.region("weights", keep="host"):
        pass
    with gapless.region("other"):
        others = weights(total, 2)
    second = digest(others)
    gapless.prepare_host(2 * total)
    gapless.sleep("other")
    one_way = min(timed(lambda: gapless.sleep("weights"))[1] for _ in range(1)) + timed(lambda: gapless.wake("weights"))[1]
    switched, names = [], ("weights", "other")
    for turn in range(4):
        switched.append(timed(lambda: gapless.switch(sleep=names[turn % 2], wake=names[1 - turn % 2]))[1])
    say("switch against one after the other", one_way / min(switched), 1.6, one_way / min(switched) >= 1.6)
    gapless.wake("other")
    gapless.is_asleep(others[0])
    for name in ("weights",):
        if gapless.is_asleep(tensors[0]):
            gapless.wake(name)
    say("bytes after switching", digest(others) == second, True, digest(others) == second)
    return slept[-1], woke[-1]


def graphs(args):
    """Cycles with a graph, other streams busy, requests between: outputs equal, nothing grows."""
    import resource

    import gapless

    with gapless.region("engine"):
        model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda().half()
        x = torch.randn(64, 2048, device="cuda").half()
        with torch.no_grad():
            for _ in range(2):
                model(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = model(x)
    graph.replay()
    expected, reserved = y.clone(), None
    side, junk, wrong = torch.cuda.Stream(), [], 0
    for cycle in range(args.cycles):
        with torch.cuda.stream(side):
            a = torch.randn(1024, 1024, device="cuda")
            for _ in range(20):
                a = a @ a
                a = a / a.norm()
        graph.replay()
        gapless.sleep("engine")
        junk = [torch.full((1 + (cycle * 977 + at) % 9, MIB), 1.0, device="cuda") for at in range(6)]
        if cycle % 3:
            junk.clear()
        gapless.wake("engine")
        y.zero_()
        graph.replay()
        wrong += not torch.equal(y, expected)
        if cycle == args.cycles // 2:
            junk.clear()
            reserved, host = torch.cuda.memory_reserved(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    junk.clear()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host
    say("cycles with a graph: wrong outputs", wrong, 0, wrong == 0, cycles=args.cycles)
    say("host memory that grew, MiB", grown / 1024, 0, grown < 32 * 1024)
    say("reserved in the second half, MiB", (torch.cuda.memory_reserved() - reserved) / MIB, 0, torch.cuda.memory_reserved() <= reserved + 64 * MIB)


SAVER = """
import json, sys, time, torch
sys.path.insert(0, {folder!r})
from torch_memory_saver import torch_memory_saver as saver
total, sizes = {total}, [117 << 20, 117 << 20, 117 << 20, 33 << 20, 33 << 20, 8 << 20, 8 << 20, 8192, 8192]
with saver.region(tag="weights", enable_cpu_backup=True):
    made, held = [], 0
    while held < total:
        for size in sizes:
            made.append(torch.full((size,), 3, dtype=torch.uint8, device="cuda"))
            held += size
down, up = [], []
for _ in range(3):
    torch.cuda.synchronize(); begin = time.perf_counter(); saver.pause("weights"); torch.cuda.synchronize(); down.append(held / 1e9 / (time.perf_counter() - begin))
    begin = time.perf_counter(); saver.resume("weights"); torch.cuda.synchronize(); up.append(held / 1e9 / (time.perf_counter() - begin))
print(json.dumps([down, up]))
"""


def peer(args, ours):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GAPLESS")}
    # Its usual mode, in which it stands below torch's own allocator.
    environment["LD_PRELOAD"] = os.path.join(args.saver, f"torch_memory_saver_hook_mode_preload_cu{torch.version.cuda.split('.')[0]}.abi3.so")
    done = subprocess.run(
        [sys.executable, "-c", SAVER.format(folder=args.saver, total=min(args.gigabytes, 8) * GIB)], capture_output=True, text=True, env=environment, timeout=150
    )
    if done.returncode:
        say("torch_memory_saver", done.stderr[-800:], None, None)
        return
    down, up = json.loads(done.stdout.splitlines()[-1])
    say("torch_memory_saver: pause, GB/s", [round(one, 1) for one in down])
    say("torch_memory_saver: resume, GB/s", [round(one, 1) for one in up])
    say("against torch_memory_saver: sleep and wake", [round(ours[0] / down[-1], 2), round(ours[1] / up[-1], 2)], 3, ours[0] >= 3 * down[-1] and ours[1] >= 3 * up[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=int, default=16)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--saver", help="a folder with torch_memory_saver")
    args = parser.parse_args()
    import gapless

    gapless.enable(oom_dir="off")
    torch.cuda.init()
    ours = speed(args)
    graphs(args)
    if args.saver:
        torch.cuda.empty_cache()
        peer(args, ours)
    print(f"{len(FAILED)} failed: {FAILED}")
    sys.exit(bool(FAILED))


if __name__ == "__main__":
    main()
