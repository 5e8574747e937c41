"""Pods that share a GPU, as `gapless fleet agent` sets them up: each a tenant with the bytes that were booked for it.

The containers here are processes with the environment of the agent's CDI files. Each process has a card of its own that
is only bookkeeping, so only their shares keep the pods apart.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

MIB = 1 << 20
IDS = {"steady": "0c1d2e3f-0000-4000-8000-00000000000a", "greedy": "0c1d2e3f-0000-4000-8000-00000000000b"}
SHARE = 1024 * MIB
CAPACITY = (4 << 30) + (37 << 20)


@pytest.fixture
def node(real, command, tmp_path):
    return Node(real, command, tmp_path)


class Node:
    """A node with one GPU and two pods on it."""

    def __init__(self, bench, gapless, folder):
        self.bench, self.gapless, self.folder = bench, gapless, folder
        self.cdi, self.run_dir = folder / "cdi", folder / "run"
        self.bookings = folder / "bookings.json"
        rows = [{"id": pod, "name": f"default/{name}", "gpus": [0], "bytes": SHARE} for name, pod in IDS.items()]
        self.bookings.write_text(json.dumps(rows))

    def agent(self, *words, processes=""):
        variables = {"LD_LIBRARY_PATH": str(self.bench.standin), "GAPLESS_RUN_DIR": str(self.run_dir), "STANDIN_PROCESSES": processes}
        words = [self.gapless, "fleet", "agent", "--once", "--node", "n1", "--bookings", str(self.bookings), "--cdi-dir", str(self.cdi), *words]
        return subprocess.run(words, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def look(self, processes=""):
        done = self.agent("--format", "json", processes=processes)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode, json.loads(done.stdout)

    def variables(self, pod):
        """The variables that a container runtime puts into the pod's environment."""
        specification = json.loads((self.cdi / f"gapless.dev-pod_{IDS[pod]}.json").read_text())
        [device] = specification["devices"]
        assert (specification["kind"], device["name"]) == ("gapless.dev/pod", IDS[pod])
        return dict(line.split("=", 1) for line in device["containerEdits"]["env"])

    def start(self, pod, program):
        code = textwrap.dedent(START) + textwrap.dedent(program)
        variables = {name: value for name, value in self.variables(pod).items() if name != "NVIDIA_VISIBLE_DEVICES"}
        environment = self.bench.environment(GAPLESS_RUN_DIR=str(self.run_dir), **variables)
        return subprocess.Popen([sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


START = """
    import sys, gapless
    gapless.enable()
    import torch
    MIB = 1 << 20
    def empty(mib): return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
    def say(*words): print(*words, flush=True)
"""

# Holds a third of its share, and takes and frees another part of it with every line that it reads.
STEADY = """
    held = empty(96)
    say("ready", gapless.stats()["gapless.tenant.limit"])
    for line in sys.stdin:
        part = empty(32)
        del part
        stats = gapless.stats()
        say("fine", torch.cuda.memory_allocated() // MIB, stats["num_ooms"], stats["gapless.tenant.limit"])
"""

# Takes memory until its share is used up, and dies of the error.
GREEDY = """
    say("ready")
    sys.stdin.readline()
    held = []
    while True:
        held.append(empty(32))
"""


def says(process):
    line = process.stdout.readline().split()
    assert line, process.stderr.read()
    return line


def goes_on(steady):
    steady.stdin.write("\n")
    steady.stdin.flush()
    assert says(steady) == ["fine", "96", "0", str(SHARE)]


@pytest.mark.parametrize("end", ["of its limit", "by a signal"])
def test_a_pod_that_ends_by_its_limit_disturbs_no_other(node, end):
    assert node.look()[0] == 0
    assert node.variables("greedy") == {"GAPLESS_TENANT": f"pod-{IDS['greedy']}:{SHARE}", "NVIDIA_VISIBLE_DEVICES": "0"}
    steady = node.start("steady", STEADY)
    try:
        assert says(steady) == ["ready", str(SHARE)]
        goes_on(steady)
        for _ in range(2):
            greedy = node.start("greedy", GREEDY)
            assert says(greedy) == ["ready"]
            if end == "by a signal":
                # In the middle of its growth, at a random moment.
                greedy.stdin.write("\n")
                greedy.stdin.flush()
                goes_on(steady)
                greedy.send_signal(signal.SIGKILL)
                greedy.communicate()
            else:
                _, said = greedy.communicate("\n", timeout=120)
                assert greedy.returncode == 1 and "OutOfMemoryError" in said, said
                assert f"pod-{IDS['greedy']}" in said, said
            goes_on(steady)
        assert steady.poll() is None
    finally:
        steady.kill()
        steady.communicate()


def test_over_use_is_marked_and_nobody_is_ended(node):
    steady = None
    try:
        assert node.look()[0] == 0
        steady = node.start("steady", STEADY)
        says(steady)
        # The process publishes its tenant within a tick of its statistics.
        for _ in range(50):
            code, seen = node.look(f"{steady.pid}:{SHARE}")
            [gpu] = seen["gpus"]
            by_name = {held["name"]: held for held in gpu["holders"]}
            if by_name["default/steady"]["used"]:
                break
        assert code == 0 and by_name["default/steady"]["used"] == SHARE and by_name["default/greedy"]["used"] == 0
        assert (gpu["booked"], gpu["total"], seen["over_use"]) == (2 * SHARE, CAPACITY, 0)
        code, seen = node.look(f"{steady.pid}:{SHARE + MIB},1:{5 * MIB}")
        [gpu] = seen["gpus"]
        assert (code, seen["over_use"], gpu["unbooked"], gpu["unbooked_pids"]) == (1, 1, 5 * MIB, [1])
        assert {held["name"]: held["over"] for held in gpu["holders"]} == {"default/steady": MIB, "default/greedy": 0}
        text = node.agent(processes=f"{steady.pid}:{SHARE + MIB}")
        assert text.returncode == 1 and "OVER-USE by 1.00 MiB" in text.stdout, text.stdout
        scraped = node.agent("--format", "prometheus", processes=f"{steady.pid}:{SHARE + MIB}").stdout
        [line] = [line for line in scraped.splitlines() if line.startswith("gapless_pod_over_use_bytes{") and "default/steady" in line]
        assert line.endswith(f" {MIB}"), line
        goes_on(steady)
    finally:
        if steady is not None:
            steady.kill()
            steady.communicate()


def test_wrong_bookings_are_refused_with_their_place(node):
    node.bookings.write_text('[{"id": "a/b", "gpus": [0], "bytes": 1}]')
    done = node.agent()
    assert done.returncode == 2 and "[0]: invalid id" in done.stderr, done.stderr
    node.bookings.unlink()
    done = node.agent()
    assert done.returncode == 2 and "cannot read" in done.stderr, done.stderr
