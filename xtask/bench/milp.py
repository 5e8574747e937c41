"""Holds answers about several memories against the exact optimum: milp.py [--limit SECONDS] FILE.json

The file is what gapless-plan's example `spaces` prints. For each question an integer program is solved with HiGHS
(scipy's), and a JSON list is printed: the optimum (null where the limit came first), ours, and seconds. The program
knows nothing of how the planner models moves. For each buffer, space and step of time a binary says whether the buffer
lies there: in one space at every access, in at most two while it is copied. A residence that begins within a lifetime
is copied from where the buffer was a step before, which costs a read there and a write here. In limited spaces each
has an offset, which stays while it stays, and for two that lie there together a binary says which is lower.
"""

import argparse
import json
import sys
import time

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix


class Program:
    def __init__(self):
        self.cost, self.lower, self.upper, self.whole = [], [], [], []
        self.rows, self.columns, self.values, self.least, self.most = [], [], [], [], []

    def variable(self, cost=0.0, upper=1.0, whole=True):
        self.cost.append(cost)
        self.lower.append(0.0)
        self.upper.append(upper)
        self.whole.append(1 if whole else 0)
        return len(self.cost) - 1

    def rule(self, terms, least=-np.inf, most=np.inf):
        row = len(self.least)
        for variable, value in terms:
            self.rows.append(row)
            self.columns.append(variable)
            self.values.append(value)
        self.least.append(least)
        self.most.append(most)

    def solve(self, limit):
        matrix = csr_matrix((self.values, (self.rows, self.columns)), shape=(len(self.least), len(self.cost)))
        return milp(
            np.array(self.cost),
            integrality=np.array(self.whole),
            bounds=Bounds(np.array(self.lower), np.array(self.upper)),
            constraints=LinearConstraint(matrix, np.array(self.least), np.array(self.most)),
            options={"time_limit": limit, "mip_rel_gap": 0.0},
        )


def optimum(question, limit):
    """The least traffic, or None where the limit came first."""
    spaces, buffers = question["spaces"], question["buffers"]
    program = Program()
    lies, offset = {}, {}
    for b, buffer in enumerate(buffers):
        size, start, end = buffer["size"], buffer["start"], buffer["end"]
        times = buffer["times"]
        steps = range(start, end)
        homes = [s for s in buffer["allowed"] if spaces[s]["capacity"] is None or spaces[s]["capacity"] >= size]
        for s in homes:
            for t in steps:
                accesses = times.count(t) if times is not None else (buffer["count"] if t == start else 0)
                lies[b, s, t] = program.variable(cost=accesses * size * spaces[s]["cost"])
                if spaces[s]["capacity"] is not None:
                    offset[b, s, t] = program.variable(upper=spaces[s]["capacity"] - size, whole=False)
        for t in steps:
            here = [(lies[b, s, t], 1.0) for s in homes]
            alone = times is None or t in times or t == start
            program.rule(here, 1.0, 1.0 if alone else 2.0)
        for s in homes:
            for t in steps[1:]:
                if times is None:
                    # It never moves.
                    program.rule([(lies[b, s, t], 1.0), (lies[b, s, t - 1], -1.0)], 0.0, 0.0)
                    continue
                copies = []
                for source in homes:
                    if source != s:
                        price = size * (spaces[s]["cost"] + spaces[source]["cost"])
                        copy = program.variable(cost=price)
                        copies.append((copy, 1.0))
                        program.rule([(lies[b, source, t - 1], 1.0), (copy, -1.0)], 0.0)
                        program.rule([(lies[b, source, t], 1.0), (copy, -1.0)], 0.0)
                program.rule(copies + [(lies[b, s, t], -1.0), (lies[b, s, t - 1], 1.0)], 0.0)
        for (_, s, t), now in [item for item in offset.items() if item[0][0] == b]:
            if (b, s, t - 1) in offset:
                most = spaces[s]["capacity"]
                before, both = offset[b, s, t - 1], [(lies[b, s, t], most), (lies[b, s, t - 1], most)]
                program.rule([(now, 1.0), (before, -1.0)] + both, -np.inf, 2 * most)
                program.rule([(before, 1.0), (now, -1.0)] + both, -np.inf, 2 * most)
    for s, space in enumerate(spaces):
        if space["capacity"] is None:
            continue
        most = space["capacity"]
        for t in sorted({t for (_, at, t) in offset if at == s}):
            here = [b for b in range(len(buffers)) if (b, s, t) in offset]
            program.rule([(lies[b, s, t], buffers[b]["size"]) for b in here], 0.0, most)
            for at, a in enumerate(here):
                for b in here[at + 1 :]:
                    lower = program.variable()
                    one, two = offset[a, s, t], offset[b, s, t]
                    far = 2 * most
                    both = [(lies[a, s, t], far), (lies[b, s, t], far)]
                    program.rule([(one, 1.0), (two, -1.0), (lower, far)] + both, -np.inf, 3 * far - buffers[a]["size"])
                    program.rule([(two, 1.0), (one, -1.0), (lower, -far)] + both, -np.inf, 2 * far - buffers[b]["size"])
    answer = program.solve(limit)
    if answer.status != 0 or answer.x is None:
        return None
    return round(answer.fun)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each question")
    parser.add_argument("file")
    args = parser.parse_args()
    with open(args.file) as file:
        questions = json.load(file)
    rows = []
    for at, question in enumerate(questions):
        begin = time.perf_counter()
        best = optimum(question, args.limit)
        rows.append(
            {
                "optimum": best,
                "traffic": question["traffic"],
                "lower_bound": question["lower_bound"],
                "moved": question["moved"],
                "timed": question["buffers"][0]["times"] is not None,
                "seconds": time.perf_counter() - begin,
            }
        )
        if best is None or best != question["traffic"]:
            print(f"question {at}: {rows[-1]}", file=sys.stderr)
    print(json.dumps(rows))


main()
