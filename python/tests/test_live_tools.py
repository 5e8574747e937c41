"""The script for real cards, on this one: all of its checks but those of memory's contents hold here too."""

import sys

from conftest import ROOT

HERE = [
    "stats",
    "accelerator",
    "fraction",
    "snapshot",
    "history",
    "mem_pool",
    "graph",
    "record_stream",
    "threads",
    "out_of_memory",
    "wrong_pointers",
    "profiler",
]


def test_the_checks_that_need_no_kernels_pass(real):
    for how in ([], ["--native"]):
        done = real.start([sys.executable, ROOT / "torch-bench/live/tools.py", "--no-values", *how, *HERE], STANDIN_CAPACITY=str(24 << 30))
        assert done.code == 0, done.out + done.err
        assert [line.split()[1] for line in done.lines() if line.startswith("PASS")] == HERE, done.out
