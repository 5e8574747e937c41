"""One of several ranks, alone: a script over torch's fake process group, whose collectives return at once.

    gapless estimate torch-bench/estimate/alone.py -- RANKS RANK SCRIPT

A rank allocates what it allocates beside the others, and one process is enough. A program that asks another rank for
numbers gets its own: take rank 0 of one that compares what rank 0 says. DistributedDataParallel does not run: it needs
the result of its reduction.
"""

import os
import runpy
import sys

import torch
from torch.testing._internal.distributed.fake_pg import FakeStore


def main():
    ranks, rank, script = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    # The script asks for NCCL; the group is there already.
    torch.distributed.init_process_group = lambda *args, **words: None
    sys.argv[:] = [script, *sys.argv[4:]]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
