"""The allocators of PyTorch and Gapless on real workloads, on a GPU, as a table.

usage: python torch-bench/live/compare.py [--workloads a,b] [--repeats 3] [--caps] [--steady] [--record a,b] [--losses
a,b] [--json FILE]

Needs torch, transformers and torchvision, and Gapless: installed, or with GAPLESS_LIBRARY naming the library and
PYTHONPATH the folder python/. Every figure is the run's own: torch.cuda.memory_stats and the clock around each step.
Every run is a process of its own, and one at a time works: the allocators' runs of a workload take turns step by step,
the first of each step another one each time, since a machine's pace changes by the second. They are forked from
processes that have imported the libraries under the same settings and have not touched CUDA: importing takes longer
than most runs. Peaks are the largest of the repeats. Times: for each step the median of the repeats, then the median of
the steps; "against best" is the median over all steps of what one took, divided by what the better of native and
expandable took for the same step in the same turn. The row "null" is native against native in the same turns: a ratio
that is as near to 1 as that one is noise.
"""

import argparse
import errno
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
    # The null line: native a second time, in the same turns. What differs from native is noise.
    "null": {},
    "expandable": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "gapless": {"GAPLESS": "1"},
}
# With --record: what the flight recorder costs, without and with the Python lines that asked.
RECORDED = {
    "gapless+record": {"GAPLESS": "1", "GAPLESS_RECORD": "run.gtrace"},
    "gapless+stacks": {"GAPLESS": "1", "GAPLESS_RECORD": "run.gtrace", "GAPLESS_RECORD_STACKS": "python"},
}
HERE = pathlib.Path(__file__).resolve().parent


class Run:
    """A process that waits for its turns."""

    count = 0
    nurseries = {}

    def __init__(self, workload, mode, folder, what="time", **more):
        env = MODES[mode] | more
        Run.count += 1
        if "GAPLESS_RECORD" in env:
            env = env | {"GAPLESS_RECORD": os.path.join(folder, f"{Run.count}.{env['GAPLESS_RECORD']}")}
        names = [os.path.join(folder, f"{Run.count}.{end}") for end in ("go", "done", "log")]
        os.mkfifo(names[0])
        os.mkfifo(names[1])
        self.log = names[2]
        asked = {"arguments": [workload, what, folder], "env": env, "turns": names[:2], "log": names[2]}
        nursery = Run.nursery(env.get("PYTORCH_ALLOC_CONF", ""))
        print(json.dumps(asked), file=nursery.stdin, flush=True)
        self.go = self.opened(names[0], nursery)
        self.done = open(names[1], "rb", buffering=0)
        self.is_over = self.done.read(1) == b""

    @staticmethod
    def opened(fifo, nursery):
        """The end that is written to, once the other process reads."""
        while True:
            try:
                end = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                if nursery.poll() is not None:
                    sys.exit(f"{HERE / 'nursery.py'} ended with {nursery.returncode}: what it says is above")
                time.sleep(0.01)
            else:
                os.set_blocking(end, True)
                return open(end, "wb", buffering=0)

    @staticmethod
    def nursery(conf):
        """One for each setting of torch's own allocator, which reads it when it is loaded."""
        if conf not in Run.nurseries:
            clean = {k: v for k, v in os.environ.items() if k not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GAPLESS")}
            clean |= {"PYTORCH_ALLOC_CONF": conf} if conf else {}
            command = [sys.executable, "-W", "ignore", str(HERE / "nursery.py")]
            Run.nurseries[conf] = subprocess.Popen(command, env=clean, stdin=subprocess.PIPE, text=True)
        return Run.nurseries[conf]

    def turn(self):
        """Lets it go on until it waits again, or is over."""
        if not self.is_over:
            try:
                self.go.write(b".")
            except BrokenPipeError:
                pass
            self.is_over = self.done.read(1) == b""

    def result(self):
        while not self.is_over:
            self.turn()
        text = pathlib.Path(self.log).read_text(errors="replace")
        found = [line for line in text.splitlines() if line.startswith("RESULT ")]
        return json.loads(found[-1][len("RESULT "):]) if found else {"error": text[-800:]}


def in_turns(runs):
    """The results of runs that take turns, each time another one first."""
    first = 0
    while not all(run.is_over for run in runs):
        for run in runs[first:] + runs[:first]:
            run.turn()
        first = (first + 1) % len(runs)
    return [run.result() for run in runs]


def table(results):
    """Prints a row for each workload and allocator; the ratios of each allocator."""
    print(f"{'workload':20} {'allocator':14} {'reserved/allocated':>18} {'reserved GiB':>13} {'median step ms':>15} {'against best':>13} {'run s':>7} {'losses':>8}")
    ratios = {}
    for workload in dict.fromkeys(w for w, _ in results):
        good = {mode: [r for r in results.get((workload, mode), []) if r.get("ok")] for mode in MODES}
        # The median of each step over the repeats, then over the steps: a run that was slow as a whole counts once.
        steps = {
            mode: statistics.median(statistics.median(ts) for ts in zip(*(r["times"] for r in runs)))
            for mode, runs in good.items()
            if runs
        }
        against = {mode: against_best(results, workload, mode) for mode in good if good[mode]}
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
                f"{workload:20} {mode:14} {ratio:18.4f} {reserved:13.3f} {steps[mode] * 1e3:15.2f} {against[mode]:13.3f} {whole:7.2f} {same:>8}",
                flush=True,
            )
    for mode, list_of in ratios.items():
        if mode in RECORDED and "gapless" in ratios:
            for workload in dict.fromkeys(w for w, _ in results):
                cost = ratios_of(results.get((workload, mode), []), results[workload, "gapless"])
                if cost:
                    print(f"{workload:20} {mode:14} {statistics.median(cost):18.4f} of a step without it")
        print(f"{'mean':20} {mode:14} {statistics.mean(list_of):18.4f}")


def ratios_of(runs, others):
    """The time of each step, divided by the other's in the same turn; turns in which one failed are left out."""
    both = [(run["times"], other["times"]) for run, other in zip(runs, others) if run.get("ok") and other.get("ok")]
    return [took / beside for pair in both for took, beside in zip(*pair)]


def against_best(results, workload, mode):
    """A step against the better of native and expandable: whichever is better over all steps. The null line is against
    native alone."""
    others = ("native",) if mode == "null" else ("native", "expandable")
    stock = (ratios_of(results[workload, mode], results[workload, m]) for m in others)
    return max((statistics.median(ratios) for ratios in stock if ratios), default=0)


# Caps that are tried, as parts of the live peak, from tight to loose.
CAPS = (1.0025, 1.005, 1.0075, 1.01, 1.02, 1.03, 1.05)


def caps(results, folder):
    """The smallest cap under which each workload finishes on Gapless, among CAPS."""
    print(f"{'workload':20} {'live MiB':>10} {'smallest cap':>13}")
    for workload in dict.fromkeys(w for w, _ in results):
        live = max((r["allocated_bytes.all.peak"] for r in results[workload, "native"] if r.get("ok")), default=0)
        said = "none"
        for part in CAPS:
            record = Run(workload, "gapless", folder, f"cap:{live * part / 2**30!r}").result()
            if record.get("ok"):
                said = f"{part} x"
                break
            if "oom" not in record:
                said = f"error: {record.get('error')}"
                break
        print(f"{workload:20} {live / 2**20:10.0f} {said:>13}", flush=True)


def losses(workloads, folder):
    """Compares the bits of losses on Gapless and on native, with the same seed and with kernels that are asked to be
    deterministic."""
    repeatable = {"DETERMINISTIC": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "STEPS": "4"}
    for workload in workloads:
        runs = [Run(workload, mode, folder, **repeatable) for mode in ("native", "native", "gapless")]
        one, other, ours = in_turns(runs)
        if not all(record.get("ok") for record in (one, other, ours)):
            print(f"{workload:20} losses: {one.get('error') or other.get('error') or ours.get('error') or 'out of memory'}")
            continue
        native = "repeats itself" if one["losses"] == other["losses"] else "does not repeat itself"
        same = "equal" if ours["losses"] == one["losses"] else "differ"
        print(f"{workload:20} losses of {len(one['losses'])} steps on gapless and native: {same} (native {native}): {one['losses'][-1]!r}", flush=True)


def steady(folder):
    """The driver calls of a step of fixed shapes, once it repeats."""
    record = Run("gpt2_train", "gapless", folder, STEPS="20").result()
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
    parser.add_argument("--caps", action="store_true", help="also find the smallest cap that each survives")
    parser.add_argument("--steady", action="store_true", help="also count driver calls of steps that repeat")
    parser.add_argument("--record", metavar="a,b", default="", help="these also with the flight recorder, without and with Python lines")
    parser.add_argument("--losses", metavar="a,b", default="", help="also whether losses of these equal native's, with deterministic kernels")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.record:
        MODES.update(RECORDED)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for workload in args.workloads.split(","):
                modes = [mode for mode in MODES if mode not in RECORDED or workload in args.record.split(",")]
                for mode, record in zip(modes, in_turns([Run(workload, mode, folder) for mode in modes])):
                    results.setdefault((workload, mode), []).append(record)
                    if not record.get("ok"):
                        print(f"{workload} {mode}: {record.get('error') or record.get('oom')}", flush=True)
            # After each repeat: a comparison that is cut short leaves what it has.
            print(f"after repeat {repeat + 1} of {args.repeats}")
            table(results)
        if args.steady:
            steady(folder)
        if args.losses:
            losses(args.losses.split(","), folder)
        if args.caps:
            caps(results, folder)
    if args.json:
        rows = [{"workload": w, "allocator": m, "runs": r} for (w, m), r in results.items()]
        pathlib.Path(args.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
