"""Steps of training and passes of inference, as they run over the card and on a real one.

`told(phase, step)` is called at the end of each phase, so that the caller can read its peaks.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, Union

# So many steps show the peak of a training step, if all batches are alike.
STEPS = 3
PRECISIONS = ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16")
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "amp-bf16": "float32", "amp-fp16": "float32"}

Told = Callable[[str, int], None]


def dtype_of(precision: str) -> Any:
    """The dtype of weights and inputs."""
    import torch

    return getattr(torch, _DTYPES[precision])


def under(precision: str) -> "AbstractContextManager[Any]":
    """Autocast, if the precision asks for it."""
    import torch

    if not precision.startswith("amp-"):
        return nullcontext()
    made: AbstractContextManager[Any] = torch.autocast("cuda", dtype=torch.float16 if precision == "amp-fp16" else torch.bfloat16)
    return made


def first_product() -> None:
    """The first matrix product allocates cuBLAS's workspace, which stays: it counts from the beginning."""
    import torch

    first = torch.randn(64, 64, device="cuda")
    (first @ first).sum().item()


Steps = Union[int, Iterable[int]]


def _numbers(steps: Steps) -> "Iterable[int]":
    return range(steps) if isinstance(steps, int) else steps


def train(model: Any, batch: Any, loss: Any, optimizer: Any, steps: Steps, precision: str, told: Told, accumulation: int = 1) -> None:
    """Forward, backward, optimizer; gradients of `accumulation` batches add up before each step of the optimizer."""
    dtype = dtype_of(precision)
    model.train()
    stepper = optimizer(model.parameters())
    for step in _numbers(steps):
        for turn in range(accumulation):
            given = batch("cuda", dtype)
            with under(precision):
                out = loss(model, given)
            told("forward", step)
            out.backward()
            told("backward", step)
            if turn + 1 < accumulation:
                del out, given
        # The batch and the loss are still there, as in most loops.
        stepper.step()
        stepper.zero_grad(set_to_none=True)
        told("optimizer", step)
        del out, given


def infer(model: Any, batch: Any, loss: Any, steps: Steps, precision: str, told: Told) -> None:
    """Passes in evaluation mode and without gradients. The result of a pass is freed before the next."""
    import torch

    dtype = dtype_of(precision)
    model.train(False)
    with torch.no_grad(), under(precision):
        for step in _numbers(steps):
            given = batch("cuda", dtype)
            out = loss(model, given)
            told("forward", step)
            del out, given
