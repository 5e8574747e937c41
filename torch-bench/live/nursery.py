"""Imports what the workloads need and then forks a process for each line of its input:
{"arguments": [...], "env": {...}, "turns": [FIFO, FIFO], "log": FILE}. compare.py starts it.

CUDA is not touched here, so every run starts its own. A run waits for its turn before it sets itself up and before each
step: it says so in the second FIFO and waits for a byte from the first. What it prints, errors too, goes to the log.
"""

import json
import os
import signal
import sys
import traceback

import torch
import torchvision  # noqa: F401
import transformers  # noqa: F401
from transformers.models.gpt2 import modeling_gpt2  # noqa: F401
from transformers.models.llama import modeling_llama  # noqa: F401
from transformers.models.mixtral import modeling_mixtral  # noqa: F401


def child(arguments, env, turns, log):
    mine, theirs = open(turns[0], "rb", buffering=0), open(turns[1], "wb", buffering=0)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(env)
    sys.argv = ["workloads.py", *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    # Which allocator is chosen when this is imported.
    import workloads

    def turn():
        theirs.write(b".")
        mine.read(1)

    workloads.turn = turn
    workloads.main()


def main():
    assert not torch.cuda.is_initialized()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        asked = json.loads(line)
        if os.fork() == 0:
            # Ends as a program does, so that exit handlers run, and does not go on with this loop.
            sys.stdin.close()
            try:
                child(**asked)
            except Exception:
                traceback.print_exc()
            sys.exit(0)


if __name__ == "__main__":
    main()
