"""The allocators of PyTorch and Gapless on real workloads, on a GPU: one process a run, interleaved, as a table.

usage: python torch-bench/live/compare.py [--workloads a,b] [--repeats 3] [--caps] [--steady] [--record] [--json FILE]

Needs torch, transformers and torchvision, and Gapless: installed, or with GAPLESS_LIBRARY naming the library and PYTHONPATH the folder python/.
Every figure is the run's own: torch.cuda.memory_stats and the clock around each step. Peaks are the largest of the repeats, times their medians.
Every run is a process of its own, forked from one that has imported the libraries under the same settings and has not touched CUDA: importing them
takes longer than most runs do.
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
# With --record: what the flight recorder costs, without and with the Python lines that asked.
RECORDED = {
    "gapless+record": {"GAPLESS": "1", "GAPLESS_RECORD": "run.gtrace"},
    "gapless+stacks": {"GAPLESS": "1", "GAPLESS_RECORD": "run.gtrace", "GAPLESS_RECORD_STACKS": "python"},
}
HERE = pathlib.Path(__file__).resolve().parent


class Nursery:
    """Processes that have imported everything, one for each setting of torch's own allocator, which reads it when it is loaded."""

    def __init__(self):
        self.by_conf = {}

    def run(self, arguments, env):
        conf = env.get("PYTORCH_ALLOC_CONF", "")
        parent = self.by_conf.get(conf)
        if parent is None or parent.poll() is not None:
            clean = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GAPLESS")}
            clean |= {"PYTORCH_ALLOC_CONF": conf} if conf else {}
            command = [sys.executable, str(HERE / "nursery.py")]
            parent = subprocess.Popen(command, env=clean, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.by_conf[conf] = parent
        print(json.dumps({"arguments": arguments, "env": env}), file=parent.stdin, flush=True)
        lines = []
        for line in parent.stdout:
            if line == "END\n":
                break
            lines.append(line)
        return lines


NURSERY = Nursery()


def run(workload, mode, folder, what="time", **more):
    env = MODES[mode] | more
    if "GAPLESS_RECORD" in env:
        env = env | {"GAPLESS_RECORD": os.path.join(folder, env["GAPLESS_RECORD"])}
    lines = NURSERY.run([workload, what, folder], env)
    found = [line for line in lines if line.startswith("RESULT ")]
    return json.loads(found[-1][len("RESULT "):]) if found else {"error": "".join(lines)[-800:]}


def table(results):
    """Prints a row for each workload and allocator; the ratios of each allocator."""
    print(f"{'workload':20} {'allocator':14} {'reserved/allocated':>18} {'reserved GiB':>13} {'median step ms':>15} {'against best':>13} {'run s':>7} {'losses':>8}")
    ratios = {}
    for workload in dict.fromkeys(w for w, _ in results):
        good = {mode: [r for r in results[workload, mode] if r.get("ok")] for mode in MODES}
        # The median of each step over the repeats, then over the steps: a run that was slow as a whole counts once.
        steps = {
            mode: statistics.median(statistics.median(ts) for ts in zip(*(r["times"] for r in runs)))
            for mode, runs in good.items()
            if runs
        }
        best = min((steps[m] for m in steps if not m.startswith("gapless")), default=0)
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
                f"{workload:20} {mode:14} {ratio:18.4f} {reserved:13.3f} {steps[mode] * 1e3:15.2f} {steps[mode] / best if best else 0:13.3f} {whole:7.2f} {same:>8}",
                flush=True,
            )
    for mode, list_of in ratios.items():
        if mode in RECORDED and "gapless" in ratios:
            # Of one workload after the other, so that a slow one does not weigh more.
            pairs = [(steps_of(results[w, mode]), steps_of(results[w, "gapless"])) for w in dict.fromkeys(w for w, _ in results)]
            cost = statistics.mean(with_it / without for with_it, without in pairs if with_it and without)
            print(f"{'step time':20} {mode:14} {cost:18.4f} of gapless without it")
        print(f"{'mean':20} {mode:14} {statistics.mean(list_of):18.4f}")


def steps_of(runs):
    """The median step of runs that went well, in seconds; 0 where none did."""
    good = [r["times"] for r in runs if r.get("ok")]
    return statistics.median(statistics.median(times) for times in zip(*good)) if good else 0


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
    parser.add_argument("--record", action="store_true", help="also with the flight recorder, without and with Python lines")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.record:
        MODES.update(RECORDED)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for workload in args.workloads.split(","):
                # Whoever runs first finds another machine than whoever runs last.
                modes = list(MODES)
                for mode in modes[repeat % len(modes):] + modes[:repeat % len(modes)]:
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
