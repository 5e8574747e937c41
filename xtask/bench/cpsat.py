"""Places buffers with CP-SAT within a capacity: cpsat.py [--limit SECONDS] [--capacity BYTES] FILE.csv[.gz]...

Prints a JSON list, one entry a file: status, seconds of wall clock and of CPU (model and search), branches, conflicts.
One worker. The limit counts seconds of CPU, so that a busy machine does not make the peer look worse than it is.
Lifetimes are fixed intervals in x, offsets are the variables in y, in units of the sizes' common divisor; one
two-dimensional no-overlap constraint holds them apart. A plan is checked pair by pair before it is called solved.
"""

import argparse
import csv
import gzip
import json
import math
import os
import sys
import threading
import time

from ortools.sat.python import cp_model


def read(path):
    """(lower, upper, size) of each buffer; lifetimes are half-open."""
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", newline="") as file:
        return [(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(file)]


def overlapping(buffers, offsets):
    """The first two buffers that are alive together and share bytes, or None."""
    order = sorted(range(len(buffers)), key=lambda i: buffers[i][0])
    for at, a in enumerate(order):
        for b in order[at + 1 :]:
            if buffers[b][0] >= buffers[a][1]:
                break
            if offsets[a] < offsets[b] + buffers[b][2] and offsets[b] < offsets[a] + buffers[a][2]:
                return a, b
    return None


def solve(path, capacity, limit):
    wall, cpu = time.perf_counter(), time.process_time()
    buffers = read(path)
    unit = math.gcd(*(size for _, _, size in buffers)) or 1
    units = capacity // unit
    model = cp_model.CpModel()
    starts, xs, ys = [], [], []
    for lower, upper, size in buffers:
        size //= unit
        if size > units:
            return {"file": os.path.basename(path), "status": "INFEASIBLE", "wall_s": 0.0, "cpu_s": 0.0}
        start = model.new_int_var(0, units - size, "")
        starts.append(start)
        xs.append(model.new_fixed_size_interval_var(lower, upper - lower, ""))
        ys.append(model.new_fixed_size_interval_var(start, size, ""))
    model.add_no_overlap_2d(xs, ys)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    done = threading.Event()

    def watch():
        # The search lets go of Python's lock; its own limits know the clock on the wall only.
        while not done.wait(0.02):
            if time.process_time() - cpu > limit:
                solver.stop_search()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        status = solver.solve(model)
    finally:
        done.set()
        watcher.join()
    name = solver.status_name(status)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        offsets = [solver.value(start) * unit for start in starts]
        pair = overlapping(buffers, offsets)
        if pair:
            sys.exit(f"{path}: buffers {pair[0]} and {pair[1]} of CP-SAT's plan overlap")
        name = "SOLVED"
    return {
        "file": os.path.basename(path),
        "status": name,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "branches": solver.num_branches,
        "conflicts": solver.num_conflicts,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, default=10.0, help="seconds of CPU for each file")
    parser.add_argument("--capacity", type=int, default=1_048_576, help="bytes")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    rows = []
    for path in args.files:
        rows.append(solve(path, args.capacity, args.limit))
        print(f"CP-SAT {rows[-1]['file']}: {rows[-1]['status']}, {rows[-1]['cpu_s']:.1f} s", file=sys.stderr)
    print(json.dumps(rows))


main()
