"""The backward pass: the program's own functions and hooks in it find the values that the forward pass had.

torch's engine runs them in a thread of its own, with the modes that are active where it is started. A mode is not
active inside its own calls, of which `backward` is one.
"""

import functools
from typing import Any

import torch

from . import modes


def keep(mode: Any) -> None:
    """The mode is active in every backward pass from here on, but in those of compiled functions, and those that a
    compiler traces."""
    engine = torch.autograd.graph._engine_run_backward

    def run(*args: Any, **words: Any) -> Any:
        if torch._C._len_torch_function_stack() or modes.traces(torch):
            return engine(*args, **words)
        with mode:
            return engine(*args, **words)

    owners: tuple[Any, ...] = (torch.autograd, torch.autograd.graph)
    for owner in owners:
        owner._engine_run_backward = run
    plain = torch.autograd.function.BackwardCFunction.apply

    @functools.wraps(plain)
    def apply(self: Any, *args: Any) -> Any:
        if getattr(self, "_forward_cls", type(self)).__module__.startswith("torch._functorch"):
            with modes.without_modes(torch):
                return plain(self, *args)
        return plain(self, *args)

    torch.autograd.function.BackwardCFunction.apply = apply
