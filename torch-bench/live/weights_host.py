"""gapless.weights on the CPU beside its peers: time until all tensors are in memory, cached and cold.

usage: GAPLESS_LOADER=FILE python torch-bench/live/weights_host.py [--gigabytes 1] [--folder .] [--rounds 5]
       [--together]

Each load runs in a process of its own, and every page is touched: safetensors maps the file and reads it later. All of
them take turns. `gapless again` is the same load as `gapless`: its quotient is noise. `direct reads` are 8 threads that
read the file with O_DIRECT into 16 MiB and keep nothing: what the disk gives. Cold means that the file's pages were
dropped from the cache first. Peers that are not installed are left out. Needs torch and numpy, and room for 1.7 times
the model in the folder.

`--together` loads a cold plain file by turns in one process, and compares each load with the direct reads of its round:
on a machine whose disk changes its speed from minute to minute, quotients of pairs are what can be compared. Direct
reads use the same memory each time there, as a program that keeps nothing would.
"""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))


def touched(tensors):
    import torch

    return sum(int(tensor.reshape(-1).view(torch.uint8)[::4096].sum()) for tensor in tensors)


def by_gapless(path):
    from gapless import weights

    def load():
        tensors = weights.load(path, device="cpu", progress=False)
        return touched(tensors.values())

    return load


def by_safetensors(path):
    import safetensors.torch

    def load():
        tensors = safetensors.torch.load_file(path)
        return touched(tensors.values())

    return load


def by_runai(path):
    from runai_model_streamer import SafetensorsStreamer

    def load():
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            # The memory of a tensor is used again for the next one: it is copied to its place.
            kept = {name: tensor.clone() for name, tensor in streamer.get_tensors()}
        return touched(kept.values())

    return load


def by_fastsafetensors(path):
    import torch
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load():
        loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()
        total = touched([buffer.get_tensor(name) for name in loader.get_keys()])
        buffer.close()
        loader.close()
        return total

    return load


def by_direct_reads(path):
    import concurrent.futures
    import mmap

    part = 2 << 20
    buffers = [mmap.mmap(-1, part) for _ in range(8)]

    def load():
        file, size = os.open(path, os.O_RDONLY | os.O_DIRECT), os.path.getsize(path)

        def read(worker):
            for at in range(worker * part, size, 8 * part):
                os.preadv(file, [buffers[worker]], at)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(read, range(8)))
        os.close(file)

    return load


PEERS = {
    "safetensors": by_safetensors,
    "gapless": by_gapless,
    "runai streamer": by_runai,
    "fastsafetensors": by_fastsafetensors,
    "direct reads": by_direct_reads,
}


def one(peer, path):
    """In a process of its own: seconds, CPU seconds, resident MiB above the start, and the sum of what was touched."""
    import torch

    torch.set_num_threads(1)
    load = PEERS[next(name for name in PEERS if peer.startswith(name))](path)
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    total = load()
    took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(took, cpu, (after.ru_maxrss - used.ru_maxrss) / 1024, "none" if total is None else total)


def cool(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def together(path, rounds):
    """Loads of a cold file by turns in this process; the first round does not count."""
    names = ["direct reads", "gapless", "direct reads again", "gapless again", "safetensors"]
    loads = {name: PEERS[next(peer for peer in PEERS if name.startswith(peer))](path) for name in names}
    times = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            cool(path)
            start, used = time.perf_counter(), time.process_time()
            loads[name]()
            if number:
                times[name].append((time.perf_counter() - start, time.process_time() - used))
    size = os.path.getsize(path) / 1e9
    for name, rows in times.items():
        took = [row[0] for row in rows]
        pairs = statistics.median(direct[0] / mine for direct, mine in zip(times["direct reads"], took))
        speeds = f"{size / statistics.median(took):5.2f} GB/s, best {size / min(took):5.2f}"
        cpu = statistics.median(row[1] for row in rows) / size
        print(f"cold, together  {name:<18} {speeds}  {pairs:.2f} of direct reads  CPU {cpu:.2f} s a GB", flush=True)


def run(peer, path, is_cold):
    if is_cold:
        cool(path)
    else:
        pathlib.Path(path).read_bytes()
    words = [sys.executable, __file__, "--one", peer, "--path", str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        if peer.startswith("gapless"):
            sys.exit(done.stderr[-2000:])
        return done.stderr.strip().splitlines()[-1]
    took, cpu, memory, total = done.stdout.split()[-4:]
    return float(took), float(cpu), float(memory), total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--path", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(args.one, args.path)
    import torch

    from gapless import weights

    folder = pathlib.Path(args.folder)
    plain, packed = folder / "host-plain.safetensors", folder / "host-packed.safetensors"
    count = max(1, int(args.gigabytes * 1e9) // (32 << 20))
    tensors = {f"layer.{n}": (torch.randn(4096, 4096) * 0.02).to(torch.bfloat16) for n in range(min(count, 4))}
    # Equal tensors are packed once: others have the same rows in another order.
    tensors.update({f"layer.{n}": tensors[f"layer.{n % 4}"].roll(n, 0) for n in range(4, count)})
    size = count * (32 << 20)
    try:
        weights.save(tensors, plain, pack=False)
        if args.together:
            del tensors
            torch.set_num_threads(1)
            return together(plain, args.rounds)
        weights.save(tensors, packed)
        del tensors
        for is_cold in (False, True):
            state = "cold" if is_cold else "cached"
            rows = [("safetensors", plain), ("gapless", plain), ("gapless again", plain), ("gapless, packed", packed)]
            rows += [("runai streamer", plain), ("fastsafetensors", plain), ("direct reads", plain)]
            times = {name: [] for name, _ in rows}
            totals = set()
            for _ in range(args.rounds):
                for name, path in rows:
                    found = run(name, path, is_cold)
                    if isinstance(found, str):
                        print(f"{state:<7} {name:<16} left out: {found}", flush=True)
                        times.pop(name)
                        rows = [row for row in rows if row[0] != name]
                        continue
                    times[name].append(found[:3])
                    totals.add(found[3])
            assert len(totals - {"none"}) == 1, "the peers read different bytes"
            base = statistics.median(row[0] for row in times["safetensors"]) if "safetensors" in times else float("nan")
            for name, all_times in times.items():
                took, cpu, memory = (statistics.median(column) for column in zip(*all_times))
                speeds = f"{size / took / 1e9:6.2f} GB/s  {base / took:5.2f} times safetensors"
                print(f"{state:<7} {name:<16} {speeds}  CPU {cpu / (size / 1e9):.2f} s a GB  {memory:6.0f} MiB resident more", flush=True)
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
    return None


if __name__ == "__main__":
    main()
