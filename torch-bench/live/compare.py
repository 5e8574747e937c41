"""The allocators of PyTorch and Gapless on real workloads, on a GPU: one process a run, interleaved, as a table.

usage: python torch-bench/live/compare.py [--workloads a,b] [--repeats 3] [--json FILE]

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

WORKLOADS = ["gpt2_train", "llama1b_varlen_ckpt", "llama_offload", "resnet_varbatch", "mixtral_moe", "multistream"]
MODES = {
    "native": {},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "gapless": {"GAPLESS": "1"},
}
HERE = pathlib.Path(__file__).resolve().parent


def run(workload, mode, folder):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GAPLESS")}
    env.update(MODES[mode])
    command = [sys.executable, str(HERE / "workloads.py"), workload, "time", folder]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return {"error": (done.stdout + done.stderr)[-800:]}
    return json.loads(lines[-1][len("RESULT "):])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.repeats):
            for workload in args.workloads.split(","):
                for mode in MODES:
                    record = run(workload, mode, folder)
                    results.setdefault((workload, mode), []).append(record)
                    if not record.get("ok"):
                        print(f"{workload} {mode}: {record.get('error') or record.get('oom')}", flush=True)
    print(f"{'workload':22} {'allocator':11} {'reserved/allocated':>18} {'reserved GiB':>13} {'median step ms':>15} {'steps s':>8}")
    ratios = {}
    for (workload, mode), records in results.items():
        good = [r for r in records if r.get("ok")]
        if not good:
            continue
        ratio = max(r["reserved_bytes.all.peak"] / r["allocated_bytes.all.peak"] for r in good)
        ratios.setdefault(mode, []).append(ratio)
        reserved = max(r["reserved_bytes.all.peak"] for r in good) / 2**30
        step = statistics.median(r["median_step_s"] for r in good) * 1e3
        total = statistics.median(r["total_step_s"] for r in good)
        print(f"{workload:22} {mode:11} {ratio:18.4f} {reserved:13.3f} {step:15.2f} {total:8.3f}")
    for mode, list_of in ratios.items():
        print(f"{'mean':22} {mode:11} {statistics.mean(list_of):18.4f}")
    if args.json:
        rows = [{"workload": w, "allocator": m, "runs": r} for (w, m), r in results.items()]
        pathlib.Path(args.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
