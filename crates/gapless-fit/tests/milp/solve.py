"""Proves the optima that tests/checkpoint_milp.rs holds the planner against: solve.py QUESTIONS.json optima.csv

QUESTIONS.json is what the example `checkpoint_questions` prints. Each question becomes an integer program of its own
making, from the contract in the head of chain.rs alone, and is solved with HiGHS (scipy's). Rows: size, seed, budget,
optimum (-1 where no choice fits).
"""

import json
import sys

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix


class Program:
    def __init__(self):
        self.cost, self.lower, self.upper = [], [], []
        self.rows, self.columns, self.values, self.least, self.most = [], [], [], [], []

    def binary(self, cost=0.0, fixed=None):
        self.cost.append(cost)
        self.lower.append(0.0 if fixed is None else float(fixed))
        self.upper.append(1.0 if fixed is None else float(fixed))
        return len(self.cost) - 1

    def rule(self, terms, least=-np.inf, most=np.inf):
        row = len(self.least)
        merged = {}
        for variable, value in terms:
            merged[variable] = merged.get(variable, 0) + value
        for variable, value in merged.items():
            self.rows.append(row)
            self.columns.append(variable)
            self.values.append(value)
        self.least.append(least)
        self.most.append(most)

    def solve(self):
        n = len(self.cost)
        matrix = csr_matrix((self.values, (self.rows, self.columns)), shape=(len(self.least), n))
        result = milp(
            np.array(self.cost),
            integrality=np.ones(n),
            bounds=Bounds(np.array(self.lower), np.array(self.upper)),
            constraints=LinearConstraint(matrix, np.array(self.least), np.array(self.most)),
            options={"mip_rel_gap": 0.0},
        )
        if result.status == 2:
            return -1
        if result.status != 0:
            raise SystemExit(f"HiGHS: {result.message}")
        return round(result.fun)


def chain(q):
    program, before = Program(), []
    blocks, room = q["blocks"], q["budget"] - q["base"]
    for i, block in enumerate(blocks):
        later = q["head_gradient"] + sum(b["gradient"] for b in blocks[i + 1 :])
        takes = [program.binary(cost) for _, _, _, cost in block["choices"]]
        program.rule([(take, 1) for take in takes], 1, 1)
        for phase in ("forward", "backward"):
            terms = list(before)
            for take, (_, forward, backward, _) in zip(takes, block["choices"]):
                terms.append((take, forward if phase == "forward" else backward + later))
            program.rule(terms, most=room)
        before += [(take, choice[0]) for take, choice in zip(takes, block["choices"])]
    program.rule(before, most=room - q["head_peak"])
    return program.solve()


def main():
    # Not to stdout, where HiGHS writes now and then.
    with open(sys.argv[1]) as questions, open(sys.argv[2], "w") as out:
        print("size,seed,budget,optimum", file=out)
        for asked in json.load(questions):
            optimum = chain(asked["question"])
            print(asked["size"], asked["seed"], asked["question"]["budget"], optimum, sep=",", file=out)


main()
