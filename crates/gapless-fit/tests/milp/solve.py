"""Proves the optima that tests/checkpoint_milp.rs holds the planner against: solve.py QUESTIONS.json optima.csv

QUESTIONS.json is what the example `checkpoint_questions` prints. Each question becomes an integer program of its own making, from
the contracts in the heads of chain.rs, segments.rs and graph.rs alone, and is solved with HiGHS (scipy's). Rows: kind, size, seed,
budget, optimum (-1 where no choice fits).
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


def segments(q):
    program = Program()
    blocks, room, n = q["blocks"], q["budget"] - q["base"], len(q["blocks"])
    later = [q["head_gradient"] + sum(b[5] for b in blocks[i:]) for i in range(n + 1)]
    arcs = []  # from, to, retained, need, variable
    for i in range(n):
        inp, saved, fw, bw, _, _, _ = blocks[i]
        need = max(saved + fw, saved + bw + later[i + 1])
        arcs.append((i, i + 1, saved, need, program.binary(0)))
        for j in range(i + 1, n + 1):
            seg = blocks[i:j]
            need = 0
            for x, b in enumerate(seg):
                need = max(need, inp + (0 if x == 0 else b[0]) + b[2])
                held = inp + sum(c[1] for c in seg[: x + 1])
                need = max(need, held + b[2] + seg[-1][4] + later[j])
                need = max(need, held + b[3] + later[i + x + 1])
            arcs.append((i, j, inp, need, program.binary(sum(b[6] for b in seg))))
    for at in range(n + 1):
        inflow = [(arc[4], 1) for arc in arcs if arc[1] == at]
        outflow = [(arc[4], -1) for arc in arcs if arc[0] == at]
        balance = -1 if at == 0 else 1 if at == n else 0
        program.rule(inflow + outflow, balance, balance)
    for i, _, _, need, variable in arcs:
        program.rule([(arc[4], arc[2]) for arc in arcs if arc[1] <= i] + [(variable, need)], most=room)
    program.rule([(arc[4], arc[2]) for arc in arcs], most=room - q["head_peak"])
    return program.solve()


def graph(q):
    program, nodes, n = Program(), q["nodes"], len(q["nodes"])
    readers = [[w for w in range(n) if v in nodes[w]["inputs"]] for v in range(n)]
    last_forward = [max([v] + readers[v]) for v in range(n)]
    # made[v][k]: the tensor has been kept, or made again, by the k-th backward stage (k = 0: before the first); stage k is node n - k.
    made = []
    for v in range(n):
        reads = [k for k in range(1, n + 1) if v in nodes[n - k]["reads"]]
        made.append([program.binary()] + [program.binary(fixed=1 if reads and k >= reads[0] else None) for k in range(1, n + 1)])
        program.cost[made[v][n]] += nodes[v]["cost"]
        program.cost[made[v][0]] -= nodes[v]["cost"]
        for k in range(1, n + 1):
            program.rule([(made[v][k], 1), (made[v][k - 1], -1)], least=0)
    for v in range(n):
        for k in range(1, n + 1):
            # It runs again only where it is read then, or where a reader runs again then; a reader that runs again finds it there.
            read = 1 if v in nodes[n - k]["reads"] else 0
            terms = [(made[v][k], 1), (made[v][k - 1], -1)]
            for w in readers[v]:
                terms += [(made[w][k], -1), (made[w][k - 1], 1)]
                program.rule([(made[v][k], 1), (made[w][k], -1), (made[w][0], 1)], least=0)
            program.rule(terms, most=read)
    there = [[program.binary() for _ in range(n + 1)] for _ in range(n)]
    for v in range(n):
        for k in range(1, n + 1):
            if any(v in nodes[n - later]["reads"] for later in range(k, n + 1)):
                program.rule([(there[v][k], 1), (made[v][k], -1)], least=0)
            for w in readers[v]:
                # Read by w's running again in stage k or later.
                program.rule([(there[v][k], 1), (made[v][k], -1), (made[w][n], -1), (made[w][k - 1], 1)], least=-1)
    # Kept through the rest of forward where it is there at the end of it: kept, and used at some time in backward.
    for v in range(n):
        if any(v in node["reads"] for node in nodes):
            program.rule([(there[v][0], 1), (made[v][0], -1)], least=0)
        for w in readers[v]:
            program.rule([(there[v][0], 1), (made[v][0], -1), (made[w][n], -1), (made[w][0], 1)], least=-1)
    room = q["budget"] - q["base"]
    for i in range(n):
        fixed = nodes[i]["forward_working"] + sum(nodes[v]["bytes"] for v in range(i + 1) if last_forward[v] >= i)
        program.rule([(there[v][0], nodes[v]["bytes"]) for v in range(i) if last_forward[v] < i], most=room - fixed)
    for k in range(1, n + 1):
        i = n - k
        fixed = sum(node["gradient"] for v, node in enumerate(nodes) if v <= i <= last_forward[v])
        fixed += sum(nodes[v]["parameter_gradient"] for v in range(i, n))
        terms = [(there[v][k], nodes[v]["bytes"]) for v in range(n)]
        program.rule(terms, most=room - fixed - nodes[i]["backward_working"])
        for v in range(n):
            working = nodes[v]["forward_working"]
            program.rule(terms + [(made[v][k], working), (made[v][k - 1], -working)], most=room - fixed)
    return program.solve()


def main():
    solve = {"chain": chain, "segments": segments, "graph": graph}
    # Not to stdout, where HiGHS writes now and then.
    with open(sys.argv[1]) as questions, open(sys.argv[2], "w") as out:
        print("kind,size,seed,budget,optimum", file=out)
        for asked in json.load(questions):
            optimum = solve[asked["kind"]](asked["question"])
            print(asked["kind"], asked["size"], asked["seed"], asked["question"]["budget"], optimum, sep=",", file=out)


main()
