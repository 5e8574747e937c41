"""The planned step on a GPU: gpt2_train for 50 steps, with plans and without, step by step.

usage: python torch-bench/live/steps.py [--steps 50] [--json FILE]

Needs what compare.py needs. For each step: peak reserved over peak allocated within it, driver calls in it, requests
that were served from the plan. Exit 1 where, from the fourth step on, the ratio exceeds 1.005 or a driver call is made:
pages that a plan leaves over are given back during the third step, behind a fence.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CALLS = ("gapless.pages_created", "gapless.pages_mapped", "gapless.host_waits")


def measure(steps):
    """One process: the figures of each step."""
    sys.path.insert(0, str(HERE))
    import gapless

    gapless.enable()
    import torch
    import workloads

    torch.manual_seed(0)
    step, _ = workloads.gpt2_train()
    rows, before = [], gapless.stats()
    for i in range(steps):
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        loss = step(i)
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        now, stats = gapless.stats(), torch.cuda.memory_stats()
        rows.append(
            {
                "reserved": stats["reserved_bytes.all.peak"],
                "allocated": stats["allocated_bytes.all.peak"],
                "calls": sum(now[key] - before[key] for key in CALLS),
                "driver_ns": now["gapless.driver_ns"] - before["gapless.driver_ns"],
                "requests": now["gapless.plan.requests"] - before["gapless.plan.requests"],
                "served": now["gapless.plan.served"] - before["gapless.plan.served"],
                "ms": 1e3 * took,
                "loss": loss,
            }
        )
        before = now
    print("ROWS " + json.dumps(rows))


def run(steps, plans):
    env = dict(os.environ, GAPLESS_PLANS=plans)
    command = [sys.executable, str(HERE / "steps.py"), "--measure", "--steps", str(steps)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    if not lines:
        sys.exit((done.stdout + done.stderr)[-2000:])
    return json.loads(lines[-1][len("ROWS ") :])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--json")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        return measure(args.steps)
    results = {"plans": run(args.steps, "1"), "no plans": run(args.steps, "0")}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(results))
    print(f"{'step':>5} " + " ".join(f"{name + ': ratio':>16} {'calls':>6} {'served':>12} {'ms':>7}" for name in results))
    for i in range(args.steps):
        cells = []
        for rows in results.values():
            row = rows[i]
            cells.append(f"{row['reserved'] / row['allocated']:16.4f} {row['calls']:6} {row['served']:5} of {row['requests']:4} {row['ms']:7.1f}")
        if i < 8 or i % 10 == 9:
            print(f"{i + 1:5} " + " ".join(cells))
    planned = results["plans"]
    worst = {first: max(row["reserved"] / row["allocated"] for row in planned[first - 1 :]) for first in (3, 4)}
    calls = sum(row["calls"] for row in planned[3:])
    late = {name: statistics.median(row["ms"] for row in rows[5:]) for name, rows in results.items()}
    print(f"worst ratio from the third step on {worst[3]:.4f}, from the fourth on {worst[4]:.4f}; driver calls from the fourth on {calls}")
    print(f"median step from the sixth on, ms: {late['plans']:.2f} with plans, {late['no plans']:.2f} without")
    print(f"losses equal: {[r['loss'] for r in planned] == [r['loss'] for r in results['no plans']]}")
    sys.exit(0 if worst[4] <= 1.005 and calls == 0 else 1)


if __name__ == "__main__":
    main()
