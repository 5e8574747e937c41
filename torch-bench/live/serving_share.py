"""One copy of weights, and tensors that grow, on a GPU: `python torch-bench/live/serving_share.py [--gigabytes 16]`.

Two processes share 16 GB: how long attaching takes, whether the bytes are equal, whether a write is refused, and
whether the reader goes on when the owner is killed. Then a decode-like loop over an elastic cache and over one that was
allocated whole, with the driver calls of the decode thread, and growth times. Each line has what is wanted beside it;
the exit code is 1 if a line fails. GAPLESS_LIBRARY names the library.
"""

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import torch

import gapless
from gapless import _memory

MIB = 1 << 20
failed = []


def line(name, value, wanted, is_fine):
    print(f"{'ok  ' if is_fine else 'FAIL'} {name:52} {value:>28}   wanted {wanted}", flush=True)
    if not is_fine:
        failed.append(name)


def note(name, value):
    print(f"     {name:52} {value:>28}", flush=True)


# ---- one copy ----


def shapes(gigabytes):
    """Tensors like those of an 8B model, to the size asked for."""
    layer = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), (14336, 4096), (14336, 4096), (4096, 14336), (4096,), (4096,)]
    found, left = [("embed", (128256, 4096))], int(gigabytes * 1e9) - 128256 * 4096 * 2
    at = 0
    while left > 0:
        for part, shape in enumerate(layer):
            found.append((f"layers.{at}.{part}", shape))
            left -= torch.Size(shape).numel() * 2
        at += 1
    return found


def checksum(tensors):
    """Sums of the bits of each tensor, which a changed bit changes."""
    return [int(tensor.view(torch.int16).sum(dtype=torch.int64).item()) for tensor in tensors]


def nvml_used(pid):
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "not told"
    rows = [row.split(",") for row in done.stdout.splitlines() if "," in row]
    return next((row[1].strip() for row in rows if row[0].strip() == str(pid)), "not told")


def owner(pipe, gigabytes, in_region):
    gapless.enable()
    generator = torch.Generator(device="cuda").manual_seed(7)
    tensors = {}
    # A region's memory comes in larger pages, so a reader has fewer of them to map.
    with gapless.region("weights") if in_region else contextlib.nullcontext():
        for name, shape in shapes(gigabytes):
            tensors[name] = torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(generator=generator)
    begun = time.perf_counter()
    handle = gapless.share(tensors)
    seconds = time.perf_counter() - begun
    pipe.send((handle, checksum(tensors.values()), seconds, sum(tensor.nbytes for tensor in tensors.values())))
    while True:
        pipe.recv()
        pipe.send(checksum(tensors.values()))


def reader(pipe, is_gapless):
    if is_gapless:
        gapless.enable()
    # The context is there, as in a server that starts and then wants its weights.
    torch.ones(1, device="cuda").item()
    cuda = ctypes.CDLL("libcuda.so.1")
    held = None
    while True:
        what, value = pipe.recv()
        try:
            if what == "attach":
                held = None
                torch.cuda.synchronize()
                free = torch.cuda.mem_get_info()[0]
                begun = time.perf_counter()
                held = gapless.attach(value)
                seconds = time.perf_counter() - begun
                pipe.send((seconds, free - torch.cuda.mem_get_info()[0]))
            elif what == "sum":
                pipe.send(checksum(held.values()))
            elif what == "write":
                # The same call on memory of its own shows that it is the attached memory that is refused.
                own = torch.empty(4096, dtype=torch.uint8, device="cuda")
                pipe.send([cuda.cuMemsetD8_v2(ctypes.c_uint64(t.data_ptr()), ctypes.c_ubyte(1), ctypes.c_size_t(4096)) for t in (own, held["embed"])])
            elif what == "work":
                # A product with each matrix, as decoding reads them.
                x = torch.ones(1, 4096, dtype=torch.bfloat16, device="cuda")
                pipe.send(sum(float((x @ weight.t()).float().sum()) for name, weight in held.items() if weight.dim() == 2 and weight.shape[1] == 4096))
        except Exception:
            pipe.send(traceback.format_exc())


def start(target, *arguments):
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    return process, here


def ask(pipe, *message):
    pipe.send(message)
    if not pipe.poll(60):
        raise SystemExit("FAIL a process does not answer")
    return pipe.recv()


def one_copy(gigabytes, in_region):
    note("the owner's weights", "lie in a region" if in_region else "lie in ordinary memory")
    holder, to_holder = start(owner, gigabytes, in_region)
    first, to_first = start(reader, True)
    second, to_second = start(reader, False)
    handle, sums, seconds, nbytes = to_holder.recv()
    note("bytes shared", f"{nbytes / 1e9:.2f} GB in {len(sums)} tensors")
    note("share() itself", f"{1e3 * seconds:.1f} ms")
    for name, pipe in (("with gapless as allocator", to_first), ("with torch's own", to_second)):
        times = []
        for _ in range(5):
            answer = ask(pipe, "attach", handle)
            if isinstance(answer, str):
                print(answer)
                line(f"attach, a reader {name}", "error", "no error", False)
                return
            times.append(answer[0])
        line(f"attach, first time, a reader {name}", f"{1e3 * times[0]:.1f} ms", "<= 50 ms", times[0] <= 0.05)
        note("attach, later ones", " ".join(f"{1e3 * t:.1f}" for t in times[1:]) + " ms")
        line("memory taken on the card for it", f"{answer[1] / MIB:.0f} MiB", "<= 64 MiB", answer[1] <= 64 * MIB)
        line("bytes equal", str(ask(pipe, "sum", None) == sums), "True", ask(pipe, "sum", None) == sums)
    note("NVML: owner, readers (MiB)", f"{nvml_used(holder.pid)}, {nvml_used(first.pid)}, {nvml_used(second.pid)}")
    codes = ask(to_first, "write", None)
    is_refused = isinstance(codes, list) and codes[0] == 0 and codes[1] != 0
    line("a write to its own memory, and there (CUDA errors)", str(codes), "[0, not 0]", is_refused)
    is_whole = ask(to_holder, None) == sums
    line("the owner's bytes after that are equal", str(is_whole), "True", is_whole)
    before = ask(to_first, "work", None)
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(30)
    time.sleep(1)
    line("owner killed: the reader's bytes equal", str(ask(to_first, "sum", None) == sums), "True", ask(to_first, "sum", None) == sums)
    after = ask(to_first, "work", None)
    line("owner killed: the reader works on, bit-equal", str(after == before), "True", after == before)
    note("NVML after that: readers (MiB)", f"{nvml_used(first.pid)}, {nvml_used(second.pid)}")
    for process in (first, second):
        process.kill()
        process.join(30)


# ---- memory that grows ----

LAYERS, HEADS, WIDTH, BATCH, BLOCK = 16, 8, 128, 16, 16
TOKENS, START, STEPS = 8192, 2048, 600


def attend(caches, length, q, row):
    """Attention of one decode step over caches [tokens, batch, 2, heads, width] that get a row."""
    for cache in caches:
        part = cache[:length]
        part[length - 1] = row
        k, v = part[:, :, 0].permute(1, 2, 0, 3), part[:, :, 1].permute(1, 2, 0, 3)
        torch.nn.functional.scaled_dot_product_attention(q, k, v)


def entries_of(resize, steps):
    """How often this thread enters the driver to grow: counted apart, since asking takes as long as growing."""
    library = _memory._started()
    before = library.optional("gapless_driver_entries")
    for step in range(steps):
        resize(START + step + 1)
    return library.optional("gapless_driver_entries") - before


def decode(whole, full, resize, steps):
    """Each step over the whole caches, over the elastic ones, and over the whole ones again as the null line: in turns,
    another one first each time, since a host's pace changes by the second. Seconds of each, and microseconds of
    growing."""
    q = torch.ones(BATCH, HEADS, 1, WIDTH, dtype=torch.bfloat16, device="cuda")
    row = torch.ones(BATCH, 2, HEADS, WIDTH, dtype=torch.bfloat16, device="cuda")
    kinds = [("whole", whole), ("elastic", full), ("again", whole)]
    times, growing = {name: [] for name, _ in kinds}, []
    torch.cuda.synchronize()
    for step in range(steps):
        length = START + step + 1
        for turn in range(3):
            name, caches = kinds[(step + turn) % 3]
            begun = time.perf_counter()
            if name == "elastic":
                resize(length)
                growing.append(1e6 * (time.perf_counter() - begun))
            attend(caches, length, q, row)
            torch.cuda.synchronize()
            times[name].append(time.perf_counter() - begun)
    return times, growing


def elastic_against_whole():
    shape = (TOKENS, BATCH, 2, HEADS, WIDTH)
    whole = [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
    for page in ("16MiB", "32MiB", "64MiB"):
        pool = gapless.elastic_pool(page=page)
        begun = time.perf_counter()
        caches = [pool.elastic(shape, torch.bfloat16) for _ in range(LAYERS)]
        made = time.perf_counter() - begun
        begun = time.perf_counter()
        for cache in caches:
            cache.grow(START).zero_()
        torch.cuda.synchronize()
        grown = time.perf_counter() - begun
        note(f"{page}: make {LAYERS} caches; grow to {START} tokens", f"{1e3 * made:.1f} ms; {1e3 * grown:.1f} ms")

        def resize(length, caches=caches):
            for cache in caches:
                if cache.size < length:
                    cache.resize(length)

        full = [cache.full for cache in caches]

        def begin():
            for cache in caches:
                cache.resize(START)
            torch.cuda.synchronize()
            time.sleep(0.3)

        decode(whole, full, resize, STEPS // 4)
        begin()
        entered = entries_of(resize, STEPS)
        begin()
        times, growing = decode(whole, full, resize, STEPS)
        ratio = {name: statistics.median(one / base for one, base in zip(times[name], times["whole"])) for name in ("elastic", "again")}
        ms = 1e3 * statistics.median(times["whole"])
        note(f"{page}: null line, whole against whole", f"{100 * (ratio['again'] - 1):+.2f} %")
        line(f"{page}: decode, elastic against whole", f"{100 * (ratio['elastic'] - 1):+.2f} % of {ms:.3f} ms", "<= +1 %", ratio["elastic"] <= 1.01)
        line(f"{page}: driver calls of the decode thread to grow", str(entered), "0", entered == 0)
        note(f"{page}: grow() of {LAYERS} caches a step, mean, worst", f"{statistics.mean(growing):.0f} us, {max(growing):.0f} us")
        begun = time.perf_counter()
        for cache in caches:
            cache.resize(0)
        back = pool.trim()
        note(f"{page}: all pages back on the card", f"{back / MIB:.0f} MiB in {1e3 * (time.perf_counter() - begun):.1f} ms")
        del caches, full, pool
        torch.cuda.synchronize()


def moved(pipe):
    """The other process of the next check: it grows when it is told to."""
    torch.ones(1, device="cuda").item()
    pool = gapless.elastic_pool(page="32MiB", ahead=0)
    cache = pool.elastic((1 << 30, 64), torch.uint8)
    while True:
        rows = pipe.recv()
        begun = time.perf_counter()
        cache.resize(rows)
        if rows == 0:
            pool.trim()
        pipe.send(time.perf_counter() - begun)


def between_processes():
    """1 GiB goes from one process's cache to another's."""
    process, pipe = start(moved)
    rows = (1 << 30) // 64
    pool = gapless.elastic_pool(page="32MiB", ahead=0)
    cache = pool.elastic((1 << 30, 64), torch.uint8)
    ask_rows = lambda count: (pipe.send(count), pipe.recv())[1]
    ask_rows(0)
    times = []
    for _ in range(3):
        cache.resize(rows)
        begun = time.perf_counter()
        cache.resize(0)
        pool.trim()
        ask_rows(rows)
        times.append(time.perf_counter() - begun)
        ask_rows(0)
    note("1 GiB from one process's cache to another's", f"{1e3 * min(times):.1f} ms")
    process.kill()


def elastic_here():
    gapless.enable()
    elastic_against_whole()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=16)
    arguments = parser.parse_args()
    begun = time.perf_counter()
    for work in (lambda: one_copy(arguments.gigabytes, False), lambda: one_copy(arguments.gigabytes, True), elastic_here, between_processes):
        try:
            work()
        except Exception:
            traceback.print_exc()
            line("a part of the check", "raised", "no error", False)
    note("time of all", f"{time.perf_counter() - begun:.0f} s")
    print("failed: " + ", ".join(failed) if failed else "all as wanted")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
