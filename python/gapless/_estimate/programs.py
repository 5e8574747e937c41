"""Replaces calls by which whole programs would spoil their own estimate.

A program may set back torch's peaks, record its memory itself, start ranks as processes of their own, or choose
settings of the allocator after torch was imported.
"""

import os
import sys
import types
from typing import Any, Callable, Optional

from .._errors import GaplessError

# Torch reads these once, before the program runs here.
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def keep_peaks(memory: Any, fold: "Callable[[], None]", own: "dict[str, int]") -> None:
    """A program that sets torch's peaks back loses none here: `fold` is called before. A program that asks for them
    gets the peaks since it did so: `own` has those that were set back here in the meantime."""
    reset, stats = memory.reset_peak_memory_stats, memory.memory_stats

    def memory_stats(device: Any = None) -> Any:
        found = stats(device)
        for key, value in own.items():
            if key in found:
                found[key] = max(found[key], value)
        return found

    owners: tuple[Any, ...] = (memory, sys.modules["torch.cuda"])
    for owner in owners:
        owner.memory_stats = memory_stats

    def reset_peak_memory_stats(device: Any = None) -> None:
        fold()
        reset(device)

    _everywhere(memory, "reset_peak_memory_stats", reset_peak_memory_stats)
    for name in ("reset_max_memory_allocated", "reset_max_memory_cached"):
        _everywhere(memory, name, reset_peak_memory_stats)


def keep_recording(memory: Any) -> None:
    """torch records already: a program that starts or ends a recording of its own changes nothing."""

    def record(*_args: Any, **_words: Any) -> None:
        return None

    _everywhere(memory, "_record_memory_history", record)


def _everywhere(memory: Any, name: str, function: Any) -> None:
    import torch

    for owner in (memory, torch.cuda, getattr(torch, "accelerator", None)):
        if hasattr(owner, name):
            setattr(owner, name, function)


def run_own_rank() -> None:
    """`torch.multiprocessing.spawn` runs one rank here, in this process: the one that this process estimates."""
    import torch.multiprocessing as multiprocessing

    rank, world = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def spawn(fn: Any, args: Any = (), nprocs: int = 1, *_rest: Any, **_words: Any) -> Any:
        if nprocs != world:
            raise GaplessError(f"the script starts {nprocs} processes: estimate as many ranks, with `gapless estimate --nproc {nprocs}`")
        fn(rank, *args)
        # With join=False the program waits for it.
        return types.SimpleNamespace(join=lambda *_: True, processes=[])

    # The function has the name of the module that it comes from.
    owners: tuple[Any, ...] = (sys.modules["torch.multiprocessing.spawn"], multiprocessing)
    for owner in owners:
        owner.spawn, owner.start_processes = spawn, spawn


def settings() -> "dict[str, Optional[str]]":
    """The allocator's settings as the environment has them."""
    return {name: os.environ.get(name) for name in _SETTINGS}


def refuse_nothing(allocated: int) -> None:
    """Refuses a script that allocated nothing: most likely processes that it started did."""
    if allocated == 0:
        raise GaplessError(
            "the script allocated nothing on the card in its own process: if it starts processes (multiprocessing, torchrun), "
            "name the program of one rank, and how many there are in --nproc; if not, there is nothing to estimate"
        )
