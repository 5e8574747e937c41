"""What the allocator costs where streams and threads meet, native and Gapless side by side. Needs a GPU.

usage: python torch-bench/live/streams.py [--seconds 5] [--turns 5] [--parts streams,churn,...] [--json FILE]

Every figure is measured by a process of its own. The processes take turns, each time another one first. The null line
is native against a second native in the same turns: what differs there is noise. A host may run a whole process at half
its pace, so each figure is the best of the turns, and a ratio is between two bests. Above 1 is better for rates
(steps/s, operations/s), below 1 for times (us).

  streams   steps/s: a producer, four consumers, record_stream, 4 KiB to 400 MiB, a limit of 3 GiB, and empty_cache
            every 97 steps
  churn     operations/s: frees and requests of 512 B to 200 MiB on one stream, 200 kept, no kernels, a limit of 8 GiB
  pair      us: `del x` of a small tensor, and torch.empty of one
  threads   us: the same pair, with 1, 2, 4, 8 and 16 threads that each have a stream
  chains    chains/s: six dependent launches over six of sixteen streams, each with a new tensor of 4 KiB to 4 MiB
  stats     us: questions about memory with 100,000 tensors live
"""

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import threading
import time

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PARTS = ["streams", "churn", "pair", "threads", "chains", "stats"]
LINES = {"native": "0", "null": "0", "gapless": "1"}
THREADS = [1, 2, 4, 8, 16]
SMALL = 1024  # float32 elements
BATCH = 100


# ---- in the process that is measured ----


def start(limit):
    """torch, on the allocator that GAPLESS names."""
    import torch

    if os.environ["GAPLESS"] != "0":
        import gapless

        if not gapless.enable(limit=limit, oom_dir="off"):
            sys.exit(f"gapless is off: {gapless.disable_reason()}")
    torch.cuda.init()
    if os.environ["GAPLESS"] == "0":
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / torch.cuda.get_device_properties(0).total_memory))
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    return torch


def log_uniform(rng, low, high):
    return int(math.exp(rng.uniform(math.log(low), math.log(high))))


def streams(seconds):
    torch = start(3 * GIB)
    rng, sides = random.Random(1), [torch.cuda.Stream() for _ in range(4)]
    main = torch.cuda.current_stream()
    sums = [torch.zeros((), device="cuda") for _ in sides]
    steps = ooms = 0
    torch.cuda.synchronize()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        steps += 1
        count = log_uniform(rng, 4 * KIB, 400 * MIB) // 4
        try:
            x = torch.empty(count, device="cuda").fill_(1)
            for at in rng.sample(range(4), rng.choice((1, 1, 2, 3))):
                side = sides[at]
                side.wait_stream(main)
                with torch.cuda.stream(side):
                    y = torch.empty(max(1, count // 2), device="cuda")
                    y.copy_(x[: y.numel()])
                    sums[at] += y[0]
                    del y
                x.record_stream(side)
            del x
        except torch.OutOfMemoryError:
            ooms += 1
            x = y = None
            torch.cuda.synchronize()
        if steps % 97 == 0:
            torch.cuda.empty_cache()
    torch.cuda.synchronize()
    return {"steps/s": steps / (time.perf_counter() - began), "ooms": ooms}


def churn(seconds):
    torch = start(8 * GIB)
    rng, kept, operations, ooms = random.Random(2), [], 0, 0
    sizes = [log_uniform(rng, 512, 200 * MIB) for _ in range(4096)]
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        for size in rng.choices(sizes, k=BATCH):
            if len(kept) >= 200:
                at = rng.randrange(len(kept))
                kept[at] = kept[-1]
                kept.pop()
                operations += 1
            try:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
                operations += 1
            except torch.OutOfMemoryError:
                ooms += 1
                del kept[: len(kept) // 4]
    return {"operations/s": operations / (time.perf_counter() - began), "ooms": ooms}


def pairs(torch, seconds, add):
    """Requests and frees of small tensors in batches, until the time is over; tells `add` what each batch took."""
    clock, empty, device = time.perf_counter, torch.empty, torch.device("cuda", 0)
    kept = [None] * BATCH
    end = clock() + seconds
    while clock() < end:
        began = clock()
        for at in range(BATCH):
            kept[at] = empty(SMALL, device=device)
        middle = clock()
        for at in range(BATCH):
            kept[at] = None
        add(middle - began, clock() - middle)


def pair(seconds):
    torch = start(8 * GIB)
    pairs(torch, 0.2, lambda asked, freed: None)
    took = []
    pairs(torch, seconds, lambda asked, freed: took.append((asked, freed)))
    # The median is the time of a batch that nothing else disturbs.
    per = [1e6 / BATCH * statistics.median(kind) for kind in zip(*took)]
    return {"empty us": per[0], "del us": per[1]}


def threads(seconds):
    torch = start(8 * GIB)
    result = {}
    for count in THREADS:
        done, ready = [0] * count, threading.Barrier(count + 1)

        def work(at):
            with torch.cuda.stream(torch.cuda.Stream()):
                pairs(torch, 0.1, lambda asked, freed: None)
                ready.wait()

                def add(asked, freed):
                    done[at] += BATCH

                pairs(torch, seconds / len(THREADS), add)

        all_of = [threading.Thread(target=work, args=(at,)) for at in range(count)]
        for one in all_of:
            one.start()
        ready.wait()
        began = time.perf_counter()
        for one in all_of:
            one.join()
        # All threads together: Python's own lock is part of it, for both.
        result[f"pair of {count} us"] = 1e6 * (time.perf_counter() - began) / max(1, sum(done))
    return result


def chains(seconds):
    torch = start(8 * GIB)
    rng, streams = random.Random(3), [torch.cuda.Stream() for _ in range(16)]
    sizes = [log_uniform(rng, 4 * KIB, 4 * MIB) // 4 for _ in range(512)]

    def chain():
        x = None
        for stream in rng.sample(streams, 6):
            with torch.cuda.stream(stream):
                if x is None:
                    x = torch.zeros(rng.choice(sizes), device="cuda")
                else:
                    stream.wait_stream(before)
                    x.record_stream(stream)
                    x = x + 1
            before = stream

    def run(seconds):
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            chain()
            done += 1
        torch.cuda.synchronize()
        return done

    run(0.3)
    began = time.perf_counter()
    return {"chains/s": run(seconds) / (time.perf_counter() - began)}


def stats(seconds):
    torch = start(8 * GIB)
    kept = [torch.empty(100 + at % 50, device="cuda") for at in range(100_000)]
    result, cuda = {}, torch.cuda
    questions = [cuda.memory_allocated, cuda.max_memory_reserved, cuda.memory_stats, cuda.reset_peak_memory_stats]
    for question in questions:
        took, end = [], time.perf_counter() + seconds / len(questions)
        while time.perf_counter() < end:
            began = time.perf_counter()
            question()
            took.append(time.perf_counter() - began)
        result[f"{question.__name__} us"] = 1e6 * statistics.median(took)
    assert len(kept) == 100_000
    return result


# ---- in the process that compares ----


def measured(part, line, seconds):
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
    command = [sys.executable, "-W", "ignore", str(pathlib.Path(__file__).resolve()), "--measure", part, "--seconds", str(seconds)]
    done = subprocess.run(
        command, env=clean | {"GAPLESS": LINES[line]}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120 + 10 * seconds
    )
    found = [text for text in done.stdout.splitlines() if text.startswith("RESULT ")]
    if done.returncode != 0 or not found:
        print(f"{part} {line}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-400:]}", flush=True)
        return None
    return json.loads(found[-1][len("RESULT ") :])


def compare(part, turns, seconds):
    """Rows of one part: the figure, the best of each line, and the ratios of the bests to native's."""
    results = {line: [] for line in LINES}
    order = list(LINES)
    for turn in range(turns):
        for line in order[turn % len(order) :] + order[: turn % len(order)]:
            results[line].append(measured(part, line, seconds))
    rows = []
    names = next((list(r) for r in results["native"] if r), [])
    for name in names:
        best = max if name.endswith("/s") else min
        row = {"part": part, "figure": name}
        for line, runs in results.items():
            values = [run[name] for run in runs if run]
            row[line] = best(values) if values else None
            row[f"{line} each"] = values
            if line != "native" and values and row["native"]:
                row[f"{line}/native"] = row[line] / row["native"]
        rows.append(row)
        print(text(row), flush=True)
    return rows


def text(row):
    number = lambda value: f"{value:12.2f}" if value is not None else f"{'-':>12}"  # noqa: E731
    ratio = lambda line: f"{row[f'{line}/native']:8.3f}" if f"{line}/native" in row else f"{'-':>8}"  # noqa: E731
    return f"{row['part']:8} {row['figure']:16} {number(row['native'])} {number(row['gapless'])} {ratio('gapless')} {ratio('null')}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5, help="what one measurement takes")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--json", type=pathlib.Path, help="write the rows here as well")
    parser.add_argument("--measure", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print("RESULT " + json.dumps(globals()[args.measure](args.seconds)), flush=True)
        return
    print(f"{'part':8} {'figure':16} {'native':>12} {'gapless':>12} {'ratio':>8} {'null':>8}")
    rows = []
    for part in args.parts.split(","):
        rows += compare(part, args.turns, args.seconds)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    print(lines, end="")
    if args.json:
        args.json.write_text(lines)


if __name__ == "__main__":
    main()
