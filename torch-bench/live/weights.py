"""gapless.weights on a GPU: loading plain and packed weights from memory, and the kernel that decodes them.

usage: GAPLESS_LOADER=FILE python torch-bench/live/weights.py [--gigabytes 32] [--folder /dev/shm] [--bench FILE]
                                                             [--alternatives ROUNDS] [--only-alternatives]
                                                             [--cold FOLDER] [--peers ROUNDS] [--json FILE]

Makes a model of bf16 weights with normal distributions in a folder of the host's memory, packs it, loads both several
times, and prints each figure beside what is wanted. Needs torch and numpy, and room for 1.7 times the model in the
folder. `--alternatives 3` compares the ways in which cached files are brought to a card (GAPLESS_WEIGHTS_*): GB/s, CPU
seconds a GB, and the share of a pinned copy in the same rounds. `--cold` names a folder on a disk, from which 4 GB are
loaded that the page cache does not have, beside direct reads of the same file and safetensors. `--peers 3` loads the
plain file with every loader that is installed, by turns. `--bench` names the program `weights_bench` (an example of
the crate gapless-weights), for the codec on the CPU. The kernel alone is timed if the library was built with
`--features bench`. Exit 1 if the loaded tensors differ from those that were made; figures that miss their goal are
printed as missed.
"""

import argparse
import concurrent.futures
import contextlib
import ctypes
import gc
import json
import mmap
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))

import numpy as np
import torch

from gapless import weights
from gapless.weights import _load, _native

ROWS, COLUMNS = 8192, 32768  # 512 MiB of bf16
FIGURES = {}
BEGAN = time.perf_counter()


def say(name, value, unit, wanted=None, is_met=None):
    FIGURES[name] = value
    goal = "" if wanted is None else f"  wanted {wanted}: {'reached' if is_met else 'MISSED'}"
    print(f"[{time.perf_counter() - BEGAN:6.1f} s] {name:<58} {value:>10.3f} {unit}{goal}", flush=True)


def make_tensor(number):
    """Tensor `number` of the model, the same each time; its scale differs from layer to layer, as trained ones do."""
    generator = torch.Generator(device="cuda").manual_seed(number)
    # Rounded from fp32: normal_ of bf16 itself gives coarser mantissas on some devices.
    values = torch.empty(ROWS, COLUMNS, device="cuda")
    return values.normal_(0.0, 0.02 * (1 + number % 5), generator=generator).to(torch.bfloat16)


def write_model(path, count):
    size = ROWS * COLUMNS * 2
    header = {f"layer.{n}.weight": {"dtype": "BF16", "shape": [ROWS, COLUMNS], "data_offsets": [n * size, (n + 1) * size]} for n in range(count)}
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    pinned = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    with open(path, "wb") as file, concurrent.futures.ThreadPoolExecutor(16) as pool:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        base, waiting = 8 + len(text), {0: [], 1: []}
        for number in range(count):
            for done in waiting[number % 2]:
                done.result()
            buffer = pinned[number % 2]
            buffer.copy_(make_tensor(number).view(torch.uint8).view(-1))
            view, part = memoryview(buffer.numpy()), size // 16
            waiting[number % 2] = [pool.submit(os.pwrite, file.fileno(), view[k * part : (k + 1) * part], base + number * size + k * part) for k in range(16)]
        for done in waiting[0] + waiting[1]:
            done.result()
    return count * size


def pinned_speed():
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    card = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(9):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(4):
            card.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 4 * (1 << 30) / statistics.median(times[1:]) / 1e9


class Memory:
    """The most resident bytes of this process above those at the start, looked at every 2 ms."""

    def __enter__(self):
        self._is_over, self.start, self.most = False, self._now(), 0
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _now(self):
        return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

    def _watch(self):
        while not self._is_over:
            self.most = max(self.most, self._now() - self.start)
            time.sleep(0.002)

    def __exit__(self, *_):
        self._is_over = True
        self._thread.join()


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def one_load(path, threads=None):
    torch.cuda.synchronize()
    began, before = time.perf_counter(), cpu()
    tensors = weights.load(path, device="cuda", threads=threads, progress=False)
    torch.cuda.synchronize()
    return tensors, time.perf_counter() - began, cpu() - before


def loads(name, path, size, copied, goal, repeats=5):
    """Several loads: the first one allocates and compiles; later ones find torch's memory."""
    times, used = [], []
    for _ in range(repeats + 1):
        tensors, took, spent = one_load(path)
        times.append(took)
        used.append(spent)
        del tensors
    gigabytes = size / 1e9
    say(f"{name}: first load, with allocation", gigabytes / times[0], "GB/s")
    speed = gigabytes / statistics.median(times[1:])
    say(f"{name}: later loads, median", speed, "GB/s")
    say(f"{name}: over a pinned copy", speed / copied, "times", f"{goal}", speed / copied >= goal)
    return statistics.median(used[1:]) / gigabytes


def fixed_cost(path):
    """A 512th of each tensor: enough jobs for all threads, so nearly all of the time is what every load costs."""
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        weights.load(path, device="cuda", rank=0, world=512, progress=False)
        times.append(time.perf_counter() - began)
    say("what every load costs", 1e3 * statistics.median(times), "ms")
    began = time.perf_counter()
    buffer = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    say("pinning 64 MiB", 1e3 * (time.perf_counter() - began), f"ms at {buffer.data_ptr():#x}")


def exact(path, count):
    tensors = weights.load(path, device="cuda", progress=False)
    bad = [n for n in range(count) if not torch.equal(tensors[f"layer.{n}.weight"].view(torch.int16), make_tensor(n).view(torch.int16))]
    return bad


def sweep(name, path, size):
    for threads in (1, 2, 4, 8, 12, 16):
        _, took, spent = one_load(path, threads)
        say(f"{name}: {threads} threads", size / took / 1e9, f"GB/s, CPU {spent / (size / 1e9):.3f} s a GB")


# Ways of bringing a cached file to a card, beside one another: GAPLESS_WEIGHTS_*, and threads.
ALTERNATIVES = (
    [(f"cached=copy,piece={piece}M", threads) for piece in (1, 2, 4) for threads in (8, 10, 12, 16)]
    + [(f"cached=copy,ring={ring},keep={keep}", 12) for ring, keep in (("driver", "yes"), ("huge", "no"))]
    + [("cached=map,window=64M", threads) for threads in (1, 2, 4)]
)


def alternatives(name, path, size, repeats):
    """Each way in turn, several rounds: GB/s, CPU and the share of a pinned copy that is measured in the same round."""
    rows = {way: ([], []) for way in ALTERNATIVES}
    copies = []
    before = dict(os.environ)
    try:
        for _ in range(repeats):
            copies.append(pinned_speed())
            for way in ALTERNATIVES:
                chosen = [part.split("=") for part in way[0].split(",")]
                os.environ.update({"GAPLESS_WEIGHTS_" + key.upper(): value for key, value in chosen})
                # The first load after a change pins memory, and the second one finds it kept.
                attempt(one_load, path, way[1])
                tensors, took, spent = one_load(path, way[1])
                del tensors
                rows[way][0].append(size / took / 1e9)
                rows[way][1].append(spent / (size / 1e9))
                weights.release()
                for key, _ in chosen:
                    del os.environ["GAPLESS_WEIGHTS_" + key.upper()]
    finally:
        os.environ.clear()
        os.environ.update(before)
    copied = statistics.median(copies)
    print(f"{name}; a pinned copy in these rounds: {copied:.1f} GB/s; wanted: 0.95 of it (packed 1.24), CPU 0.05 s a GB")
    print(f"  {'GAPLESS_WEIGHTS_*':<44} threads   GB/s  of copy  CPU s/GB")
    for (way, threads), (speeds, used) in sorted(rows.items(), key=lambda row: -statistics.median(row[1][0]) if row[1][0] else 0):
        if speeds:
            speed, spent = statistics.median(speeds), statistics.median(used)
            print(f"  {way:<44} {threads:>7} {speed:>6.1f} {speed / copied:>8.3f} {spent:>9.3f}", flush=True)
            FIGURES[f"{name}: {way} with {threads} threads"] = {"gigabytes_a_second": speed, "of_copy": speed / copied, "cpu_seconds_a_gigabyte": spent}


def cold(folder, rounds=5):
    """A cold file to the card by turns with direct reads, which keep nothing; their second line shows the noise."""
    import weights_host

    path = pathlib.Path(folder) / f"gapless-cold-{os.getpid()}.safetensors"
    try:
        size = write_model(path, 8)
        torch.cuda.empty_cache()
        direct = weights_host.by_direct_reads(path)
        ways = {"direct reads": direct, "to the card": lambda: one_load(path), "direct reads again": direct}
        with contextlib.suppress(ImportError):
            import safetensors.torch

            ways["safetensors, to the card"] = lambda: safetensors.torch.load_file(path, device="cuda")
        times, most = {name: [] for name in ways}, 0
        weights.release()
        for number in range(rounds + 1):
            for name, way in ways.items():
                weights_host.cool(path)
                with Memory() as memory:
                    began = time.perf_counter()
                    way()
                    torch.cuda.synchronize()
                    took = time.perf_counter() - began
                if name == "to the card":
                    most = max(most, memory.most)
                if number:
                    times[name].append(took)
        for name, all_times in times.items():
            pairs = statistics.median(first / mine for first, mine in zip(times["direct reads"], all_times))
            say(f"cold: {name}", size / statistics.median(all_times) / 1e9, f"GB/s, {pairs:.2f} of direct reads in the same round")
        say("cold: resident memory above the start", most / 2**20, "MiB", "64", most <= 64 << 20)
    finally:
        path.unlink(missing_ok=True)


def by_instanttensor(path):
    import instanttensor

    with instanttensor.safe_open(str(path), framework="pt", device=0) as file:
        return dict(file.tensors())


def by_fastsafetensors(path):
    import fastsafetensors

    loader = fastsafetensors.SafeTensorsFileLoader(fastsafetensors.SingleGroup(), torch.device("cuda:0"), nogds=True)
    loader.add_filenames({0: [str(path)]})
    buffer = loader.copy_files_to_device()
    # Tensors are a part of the buffer, which holds the file.
    return {name: buffer.get_tensor(name) for name in loader.get_keys()} | {"": buffer, " ": loader}


def by_runai(path):
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        return {name: tensor.to("cuda") for name, tensor in streamer.get_tensors()}


def by_safetensors(path):
    import safetensors.torch

    return safetensors.torch.load_file(path, device="cuda")


PEERS = {
    "gapless": lambda path: weights.load(path, device="cuda", progress=False),
    "instanttensor": by_instanttensor,
    "fastsafetensors": by_fastsafetensors,
    "runai streamer": by_runai,
    "safetensors": by_safetensors,
}


def peers(path, size, rounds):
    """The loaders by turns; the first round does not count. One tensor of each is compared with what was made."""
    times = {name: [] for name in PEERS}
    for number in range(rounds + 1):
        for name, load in PEERS.items():
            if times[name] is None:
                continue
            torch.cuda.synchronize()
            began, before = time.perf_counter(), cpu()
            try:
                tensors = load(path)
                torch.cuda.synchronize()
            except Exception as error:
                print(f"peers: {name} left out: {type(error).__name__}: {str(error)[:200]}", flush=True)
                times[name] = None
                continue
            took, spent = time.perf_counter() - began, cpu() - before
            if number:
                times[name].append((took, spent))
            else:
                same = torch.equal(tensors["layer.3.weight"].view(torch.int16), make_tensor(3).view(torch.int16))
                print(f"peers: {name}: {'the same bytes' if same else 'OTHER BYTES'}", flush=True)
            del tensors
            gc.collect()
            torch.cuda.empty_cache()
    for name, rows in times.items():
        if rows:
            spent = statistics.median(row[1] for row in rows) / (size / 1e9)
            say(f"peers: {name}, with allocation", size / statistics.median(row[0] for row in rows) / 1e9, f"GB/s, CPU {spent:.3f} s a GB")


def conversion(path, size):
    """The same file as fp16: twice, since the first one allocates."""
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        tensors = weights.load(path, device="cuda", dtype=torch.float16, progress=False)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        del tensors
    say("plain: converted to fp16 on the way", size / took / 1e9, "GB/s")


def without_kernel(path, size):
    with _native.Catalogue(path) as catalogue:
        filler = _load.Filler(catalogue, torch.device("cuda"), None, False, kernel=False)
        kept = []
        for at, tensor in enumerate(catalogue.tensors):
            kept.append(torch.empty(tensor["shape"], dtype=torch.bfloat16, device="cuda"))
            filler.add(at, 0, kept[-1], torch.bfloat16)
        torch.cuda.synchronize()
        began = time.perf_counter()
        progress = filler.run()
        say("packed, decoded on the host", size / (time.perf_counter() - began) / 1e9, f"GB/s, {progress.on_host} chunks")


class Measured(ctypes.Structure):
    _fields_ = [*((name, ctypes.c_uint64) for name in ("given", "read", "chunks", "left_out")), ("seconds", ctypes.c_double)]


def measure(catalogue, pieces, settings, room, passes):
    """The kernel alone, from staging memory of `room` bytes. `None`: the library was not built with feature `bench`."""
    timed = getattr(ctypes.CDLL(_native.path()), "gapless_loader_measure", None)
    if timed is None:
        return None
    entries = (_native.Piece * len(pieces))(*(_native.Piece(*piece) for piece in pieces))
    result, count = Measured(), ctypes.c_size_t(len(pieces))
    numbers = (ctypes.c_uint64(room), ctypes.c_uint32(passes))
    if timed(ctypes.c_void_p(catalogue._open()), entries, count, ctypes.byref(settings), *numbers, ctypes.byref(result)):
        raise RuntimeError(_native.function("last_error")())
    return result


def decode_alone(path, count):
    """The kernel over chunks that are on the card already."""
    with _native.Catalogue(path) as catalogue:
        count = min(count, 16)
        targets = [torch.empty(ROWS, COLUMNS, dtype=torch.bfloat16, device="cuda") for _ in range(count)]
        pieces = [(n, 0, catalogue.tensors[n]["bytes"], targets[n].data_ptr()) for n in range(count)]
        room = sum(catalogue.tensors[n]["stored"] for n in range(count)) + (64 << 20)
        staging = torch.empty(room, dtype=torch.uint8, device="cuda")
        settings = _native.Settings(device=0, threads=1, stream=torch.cuda.current_stream().cuda_stream, staging=staging.data_ptr())
        measured = measure(catalogue, pieces, settings, room, 15)
        if measured is None:
            print("decode on the card alone: not timed; build gapless-loader with --features bench")
            return True
        names = [catalogue.tensors[n]["name"] for n in range(count)]
        same = all(torch.equal(t.view(torch.int16), make_tensor(int(name.split(".")[1])).view(torch.int16)) for t, name in zip(targets, names))
    speed = measured.given / measured.seconds / 1e12
    say("decode on the card alone, output", speed, "TB/s", "1.0", speed >= 1.0)
    say("decode on the card alone, read and written", (measured.given + measured.read) / measured.seconds / 1e12, "TB/s")
    say("decode on the card alone, chunks left to the host", measured.left_out, f"of {measured.chunks + measured.left_out}")
    # Chunks that are left to the host were not decoded here.
    return same or measured.left_out > 0


def registered(path):
    """The time of copies straight from the page cache: windows of the file, mapped and pinned for a moment."""
    runtime, window, total = torch.cuda.cudart(), 64 << 20, 2 << 30
    card = torch.empty(window, dtype=torch.uint8, device="cuda")
    copier = ctypes.CDLL("libcudart.so.13") if not hasattr(runtime, "cudaMemcpy") else None
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), total, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED)
        address = np.frombuffer(mapped, dtype=np.uint8).__array_interface__["data"][0]
        pin = copy = 0.0
        before = cpu()
        for at in range(0, total, window):
            began = time.perf_counter()
            status = int(runtime.cudaHostRegister(address + at, window, 8))
            pin += time.perf_counter() - began
            if status:
                print(f"cudaHostRegister of a mapped file: error {status}")
                return
            began = time.perf_counter()
            if copier is not None:
                copier.cudaMemcpy(ctypes.c_void_p(card.data_ptr()), ctypes.c_void_p(address + at), ctypes.c_size_t(window), 1)
            copy += time.perf_counter() - began
            began = time.perf_counter()
            runtime.cudaHostUnregister(address + at)
            pin += time.perf_counter() - began
        spent = cpu() - before
    say("a mapped file: pinning and unpinning alone", total / pin / 1e9, f"GB/s, CPU {spent / (total / 1e9):.3f} s a GB in all")
    if copy:
        say("a mapped file: copies from it", total / copy / 1e9, "GB/s")


def cpu_codec(program, folder):
    raw = folder / "values.bf16"
    make_tensor(3)[:4096].cpu().view(torch.uint8).numpy().tofile(raw)
    done = subprocess.run([program, "9", "bf16", str(raw)], capture_output=True, text=True)
    raw.unlink()
    if done.returncode:
        print(f"weights_bench failed: {done.stderr[-500:]}")
        return
    found = json.loads(done.stdout)
    say("CPU: memcpy, one thread", found["memcpy"], f"GB/s, again {found['memcpy_again']}")
    for row in found["paths"]:
        wanted = ("1.3 times memcpy", row["decode_streamed"] >= 1.3 * found["memcpy"]) if row["path"] == "Avx512" else (None, None)
        say(f"CPU: {row['path']} decode", row["decode_streamed"], f"GB/s, plain stores {row['decode']}, encode {row['encode']}", *wanted)
    say("CPU: ratio", found["packed"] / found["bytes"], "")


def attempt(step, *arguments):
    """A step that fails is told and does not end the others."""
    try:
        return step(*arguments)
    except Exception as error:
        print(f"FAILED {step.__name__}: {type(error).__name__}: {error}", flush=True)
        FIGURES[f"failed {step.__name__}"] = str(error)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=32)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--bench")
    parser.add_argument("--alternatives", type=int, default=0, metavar="ROUNDS", help="compare the ways of GAPLESS_WEIGHTS_* in so many rounds")
    parser.add_argument("--only-alternatives", action="store_true", help="nothing else but the plain file's exactness")
    parser.add_argument("--cold", metavar="FOLDER", help="load a cold file from a folder on a disk too")
    parser.add_argument("--peers", type=int, default=0, metavar="ROUNDS", help="load the plain file with other loaders too, in so many rounds")
    parser.add_argument("--json")
    args = parser.parse_args()
    folder = pathlib.Path(args.folder) / f"gapless-weights-{os.getpid()}"
    folder.mkdir()
    try:
        is_exact = measure(args, folder)
    finally:
        shutil.rmtree(folder)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(FIGURES, indent=1))
    sys.exit(0 if is_exact else 1)


def measure(args, folder):
    free = shutil.disk_usage(folder).free
    count = int(min(args.gigabytes * 1e9, free / 1.75) // (ROWS * COLUMNS * 2))
    plain, packed = folder / "plain.safetensors", folder / "packed.safetensors"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {os.cpu_count()} cores, {free / 1e9:.0f} GB free, {count} tensors", flush=True)
    copied = pinned_speed()
    say("a pinned copy, 1 GiB buffers", copied, "GB/s")
    began = time.perf_counter()
    size = write_model(plain, count)
    torch.cuda.empty_cache()
    say("writing the model", size / (time.perf_counter() - began) / 1e9, f"GB/s, {size / 1e9:.1f} GB")

    with Memory() as memory:
        tensors, took, _ = one_load(plain)
    say("plain: the very first load", size / took / 1e9, "GB/s")
    say("plain: resident memory above the start", memory.most / 2**20, "MiB", "256", memory.most <= 256 << 20)
    del tensors
    spent = attempt(loads, "plain", plain, size, copied, 0.95)
    if spent is not None:
        say("plain: CPU", spent, "s a GB", "0.05", spent <= 0.05)
    attempt(fixed_cost, plain)
    attempt(conversion, plain, size)
    if args.cold:
        attempt(cold, args.cold)
    if args.peers:
        attempt(peers, plain, size, args.peers)
    if args.alternatives:
        _native.pack(plain, packed, os.cpu_count())
        wrong = []
        for name, path in (("plain", plain), ("packed", packed)):
            attempt(alternatives, name, path, size, args.alternatives)
            os.environ["GAPLESS_WEIGHTS_CACHED"] = "map"
            found = attempt(exact, path, count)
            del os.environ["GAPLESS_WEIGHTS_CACHED"]
            print(f"{name}, mapped: {'failed' if found is None else count - len(found)} of {count} tensors bit for bit", flush=True)
            wrong.append(found)
        packed.unlink()
    bad = exact(plain, count)
    print(f"plain: {count - len(bad)} of {count} tensors bit for bit", flush=True)
    if args.only_alternatives:
        return not bad and (not args.alternatives or wrong == [[], []])
    attempt(sweep, "plain", plain, size)

    began = time.perf_counter()
    _native.pack(plain, packed, os.cpu_count())
    say("packing", size / (time.perf_counter() - began) / 1e9, f"GB/s, ratio {packed.stat().st_size / plain.stat().st_size:.4f}")
    same = attempt(decode_alone, packed, count)
    print(f"decode alone: {'bit for bit, or left to the host' if same else 'WRONG BYTES'}", flush=True)
    with Memory() as memory:
        attempt(one_load, packed)
    say("packed: resident memory above the start", memory.most / 2**20, "MiB", "256", memory.most <= 256 << 20)
    spent = attempt(loads, "packed", packed, size, copied, 0.95 * 1.3)
    if spent is not None:
        say("packed: CPU", spent, "s a GB")
        ratio = FIGURES["packed: later loads, median"] / FIGURES["plain: later loads, median"]
        say("packed over plain", ratio, "times", "1.3", ratio >= 1.3)
    wrong = attempt(exact, packed, count)
    print(f"packed: {'failed' if wrong is None else count - len(wrong)} of {count} tensors bit for bit", flush=True)
    attempt(sweep, "packed", packed, size)
    attempt(without_kernel, packed, size)
    attempt(registered, plain)
    if args.bench:
        attempt(cpu_codec, args.bench, folder)
    return not bad and same is True and wrong == []


if __name__ == "__main__":
    main()
