"""Imports what the workloads need and then forks a process for each line of its input: {"arguments": [...], "env": {...}}. compare.py starts it.

CUDA is not touched here, so every run starts its own. What a run prints, errors too, goes to standard output, then a line END.
"""

import json
import os
import sys

import torch
import torchvision  # noqa: F401
import transformers  # noqa: F401
from transformers.models.gpt2 import modeling_gpt2  # noqa: F401
from transformers.models.llama import modeling_llama  # noqa: F401
from transformers.models.mixtral import modeling_mixtral  # noqa: F401


def child(arguments, env):
    os.dup2(1, 2)
    os.environ.update(env)
    sys.argv = ["workloads.py", *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    # Which allocator is chosen when this is imported.
    import workloads

    workloads.main()


def main():
    assert not torch.cuda.is_initialized()
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            # As a program ends, so that whatever is registered for that runs; and not as this loop would go on.
            sys.stdin.close()
            child(asked["arguments"], asked["env"])
            sys.exit(0)
        os.waitpid(pid, 0)
        print("END", flush=True)


if __name__ == "__main__":
    main()
