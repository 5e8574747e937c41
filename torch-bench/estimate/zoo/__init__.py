"""Modules of the kinds that users bring, each with a batch and a loss. Nothing here needs a download.

`CASES[name]` is a Case. A file has the cases of one field; `library` has those of torchvision and transformers. Half of
the names are set aside before anything is tuned: a hash of the name alone decides which half.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

FILES = ("sequences", "vision", "attention", "graphs", "numerics", "library", "strangers", "families")


@dataclass(frozen=True)
class Case:
    """`make()` is a module, `batch(device, dtype, size)` its input, `loss(model, batch)` a scalar."""

    make: Callable[[], Any]
    batch: Callable[[str, Any, int], Any]
    loss: Callable[[Any, Any], Any]
    size: int


def cases() -> "dict[str, Case]":
    found: dict[str, Case] = {}
    for file in FILES:
        for name, case in import_module(f"{__name__}.{file}").CASES.items():
            if name in found:
                raise ValueError(f"two cases are called {name}")
            found[name] = Case(*case)
    return found


def is_held(name: str) -> bool:
    """True if a case is set aside."""
    return hashlib.sha256(f"zoo {name}".encode()).digest()[0] % 2 == 1


# The cells of a case: precision, optimizer, mode. The second one's optimizer goes round.
ROUND = ("adamw-fused", "sgd-momentum", "adam-foreach", "rmsprop", "adagrad", "nadam", "sgd-nesterov", "adamw-capturable")


def cells(number: int) -> "list[tuple[str, str, str]]":
    """The cells of the case with this number."""
    second = ("amp-bf16", "amp-bf16", "amp-fp16", "bf16")[number % 4]
    return [("fp32", "adamw", "train"), (second, ROUND[number % len(ROUND)], "train"), (("fp32", "amp-bf16", "fp32", "bf16")[number % 4], "none", "infer")]


def optimizer(name: str) -> Any:
    import torch.optim as optim

    return {
        "adamw": lambda p: optim.AdamW(p, lr=1e-5),
        "adamw-fused": lambda p: optim.AdamW(p, lr=1e-5, fused=True),
        "adamw-capturable": lambda p: optim.AdamW(p, lr=1e-5, capturable=True),
        "sgd-momentum": lambda p: optim.SGD(p, lr=1e-5, momentum=0.9),
        "sgd-nesterov": lambda p: optim.SGD(p, lr=1e-5, momentum=0.9, nesterov=True, foreach=False),
        "adam-foreach": lambda p: optim.Adam(p, lr=1e-5, foreach=True),
        "rmsprop": lambda p: optim.RMSprop(p, lr=1e-5, momentum=0.9, centered=True),
        "adagrad": lambda p: optim.Adagrad(p, lr=1e-5),
        "nadam": lambda p: optim.NAdam(p, lr=1e-5),
        "none": None,
    }[name]
