"""The allocators of PyTorch and Gapless on real workloads, on a GPU: one process a run, interleaved, as a table.

usage: python torch-bench/live/compare.py [--workloads a,b] [--repeats 3] [--caps] [--steady] [--json FILE]

Needs torch, transformers and torchvision, and Gapless: installed, or with GAPLESS_LIBRARY naming the library and PYTHONPATH the folder python/.
Every figure is the run's own: torch.cuda.memory_stats and the clock around each step. Peaks are the largest of the repeats, times their medians.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WORKLOADS = ["gpt2_train", "llama1b_varlen_ckpt", "llama_offload", "resnet_varbatch", "mixtral_moe", "multistream"]
MODES = {
    "native": {},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "gapless": {"GAPLESS": "1"},
}
HERE = pathlib.Path(__file__).resolve().parent


def run(workload, mode, folder, what="time", **more):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GAPLESS")}
    env.update(MODES[mode], **more)
    command = [sys.executable, str(HERE / "workloads.py"), workload, what, folder]
    began = time.time()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return {"error": (done.stdout + done.stderr)[-800:]}
    return json.loads(lines[-1][len("RESULT "):]) | {"whole_s": time.time() - began}


def table(results):
    """Prints a row for each workload and allocator; the ratios of each allocator."""
    print(f"{'workload':20} {'allocator':11} {'reserved/allocated':>18} {'reserved GiB':>13} {'median step ms':>15} {'against best':>13} {'run s':>7} {'losses':>8}")
    ratios = {}
    for workload in dict.fromkeys(w for w, _ in results):
        good = {mode: [r for r in results[workload, mode] if r.get("ok")] for mode in MODES}
        # The median of each step over the repeats, then over the steps: a run that was slow as a whole counts once.
        steps = {
            mode: statistics.median(statistics.median(ts) for ts in zip(*(r["times"] for r in runs)))
            for mode, runs in good.items()
            if runs
        }
        best = min((steps[m] for m in steps if m != "gapless"), default=0)
        losses = good["native"][0]["losses"] if good["native"] else None
        for mode, runs in good.items():
            if not runs:
                continue
            ratio = max(r["reserved_bytes.all.peak"] / r["allocated_bytes.all.peak"] for r in runs)
            ratios.setdefault(mode, []).append(ratio)
            reserved = max(r["reserved_bytes.all.peak"] for r in runs) / 2**30
            whole = statistics.median(r["setup_s"] + r["total_step_s"] for r in runs)
            same = "equal" if all(r["losses"] == losses for r in runs) else "differ"
            print(
                f"{workload:20} {mode:11} {ratio:18.4f} {reserved:13.3f} {steps[mode] * 1e3:15.2f} {steps[mode] / best if best else 0:13.3f} {whole:7.2f} {same:>8}",
                flush=True,
            )
    for mode, list_of in ratios.items():
        print(f"{'mean':20} {mode:11} {statistics.mean(list_of):18.4f}")


def caps(results, folder):
    """Whether each workload finishes on Gapless under 1.01 x its live peak + 64 MiB."""
    print(f"{'workload':20} {'live MiB':>10} {'cap MiB':>10} {'finishes':>9}")
    for workload in dict.fromkeys(w for w, _ in results):
        live = max((r["allocated_bytes.all.peak"] for r in results[workload, "native"] if r.get("ok")), default=0)
        cap = live * 1.01 + (64 << 20)
        record = run(workload, "gapless", folder, f"cap:{cap / 2**30!r}")
        said = "yes" if record.get("ok") else "no" if "oom" in record else "error"
        print(f"{workload:20} {live / 2**20:10.0f} {cap / 2**20:10.0f} {said:>9}", flush=True)


def steady(folder):
    """What a step of fixed shapes asks of the driver, once it repeats."""
    record = run("gpt2_train", "gapless", folder, STEPS="20")
    calls = record.get("calls") or []
    if len(calls) < 20:
        print("steady state:", record.get("error") or record)
        return
    created, mapped, waited = (calls[-1][i] - calls[4][i] for i in range(3))
    print(f"gpt2_train, steps 6 to 20: {created} pages created, {mapped} mapped, {waited} waits of the host")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--caps", action="store_true", help="also try each under 1.01 x its live peak + 64 MiB")
    parser.add_argument("--steady", action="store_true", help="also count driver calls of steps that repeat")
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for workload in args.workloads.split(","):
                # Whoever runs first finds another machine than whoever runs last.
                modes = list(MODES)
                for mode in modes[repeat % 3:] + modes[:repeat % 3]:
                    record = run(workload, mode, folder)
                    results.setdefault((workload, mode), []).append(record)
                    if not record.get("ok"):
                        print(f"{workload} {mode}: {record.get('error') or record.get('oom')}", flush=True)
            # After each repeat: a comparison that is cut short leaves what it has.
            print(f"after repeat {repeat + 1} of {args.repeats}")
            table(results)
        if args.steady:
            steady(folder)
        if args.caps:
            caps(results, folder)
    if args.json:
        rows = [{"workload": w, "allocator": m, "runs": r} for (w, m), r in results.items()]
        pathlib.Path(args.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
