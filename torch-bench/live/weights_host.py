"""gapless.weights on the CPU beside safetensors: time until all tensors are in memory, cached and cold.

usage: GAPLESS_LOADER=FILE python torch-bench/live/weights_host.py [--gigabytes 1] [--folder .] [--rounds 5]

Each load runs in a process of its own, and every byte is touched: safetensors maps the file and reads it later. All of
them take turns. `gapless again` is the same load as `gapless`: its quotient is noise. Cold means that the file's pages
were dropped from the cache first. Needs torch, numpy and safetensors, and room for 1.7 times the model in the folder.
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


def one(peer, path):
    """In a process of its own: seconds, CPU seconds and the most resident MiB above the tensors."""
    import torch

    torch.set_num_threads(1)
    if peer.startswith("gapless"):
        from gapless import weights
    else:
        import safetensors.torch
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    if peer.startswith("gapless"):
        tensors = weights.load(path, device="cpu", progress=False)
    else:
        tensors = safetensors.torch.load_file(path)
    total = sum(int(tensor.view(-1).view(torch.uint8)[:: 4096].sum()) for tensor in tensors.values())
    took, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    print(took, cpu, total)


def run(peer, path, is_cold):
    if is_cold:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        pathlib.Path(path).read_bytes()
    words = [sys.executable, __file__, "--one", peer, "--path", str(path)]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    took, cpu, total = done.stdout.split()
    return float(took), float(cpu), int(total)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--rounds", type=int, default=5)
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
    tensors.update({f"layer.{n}": tensors[f"layer.{n % 4}"].clone() for n in range(4, count)})
    size = count * (32 << 20)
    try:
        weights.save(tensors, plain, pack=False)
        weights.save(tensors, packed)
        del tensors
        for is_cold in (False, True):
            rows = [("safetensors", plain), ("gapless", plain), ("gapless again", plain), ("gapless, packed", packed)]
            times = {name: [] for name, _ in rows}
            totals = set()
            for _ in range(args.rounds):
                for name, path in rows:
                    took, cpu, total = run(name, path, is_cold)
                    times[name].append((took, cpu))
                    totals.add(total)
            assert len(totals) == 1, "the peers read different bytes"
            base = statistics.median(took for took, _ in times["safetensors"])
            for name, all_times in times.items():
                took, cpu = (statistics.median(column) for column in zip(*all_times))
                state = "cold" if is_cold else "cached"
                print(f"{state:<7} {name:<16} {size / took / 1e9:6.2f} GB/s  {base / took:5.2f} times safetensors  CPU {cpu / (size / 1e9):.2f} s a GB", flush=True)
    finally:
        plain.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
    return None


main()
