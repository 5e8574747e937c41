"""gapless.estimate(): the memory of a model's steps on a card, without a card. docs/estimate.md describes it.

A process of its own runs torch's CUDA code over a card that is only bookkeeping, so every allocation is the one that a
GPU makes. It has to be another process, because the card must be there before torch is.
"""

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable, Optional

from .._errors import GaplessError
from . import process, together, transport
from .answer import Estimate
from .assumed import parse
from .cards import Card, card, environment
from .steps import PRECISIONS

# device_unexpected() of the card ends a process with this code and a message.
_NOT_KNOWN = 70


def estimate(
    model: Any,
    *,
    batch: Callable[..., Any],
    loss: Optional[Callable[..., Any]] = None,
    optimizer: Optional[Callable[..., Any]] = None,
    precision: str = "amp-bf16",
    train: bool = True,
    steps: Optional[int] = None,
    device: str = "h200",
    assume: Sequence[str] = (),
) -> Estimate:
    """The memory that steps of a model take on a card.

    model: a module, or a callable that makes one (better for large models: it is called in the other process, where
        parameters take no memory).
    batch: batch(device, dtype) makes the inputs of a step.
    loss: loss(model, batch) is a scalar; without it the model's own loss, or the sum of its first output.
    optimizer: optimizer(parameters); AdamW without it. Not used with train=False, which runs the model in evaluation
        mode and without gradients.
    precision: fp32, bf16, fp16, or amp-bf16 and amp-fp16 (float32 weights under torch.autocast).
    steps: so many; without a number three, or more while batches take different amounts of memory.
    assume: FILE:LINE=VALUE, what the program reads there of a value that is not known.
    device: a card by name; an unknown one gets the list of those that are.
    """
    if precision not in PRECISIONS:
        raise GaplessError(f"precision {precision!r} is not known: use one of {', '.join(PRECISIONS)}")
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise GaplessError(f"steps is {steps!r}: use a whole number from 1 on (3 shows the peak of a training step)")
    for name, value in (("batch", batch), ("loss", loss), ("optimizer", optimizer)):
        if not callable(value) and not (value is None and name != "batch"):
            raise GaplessError(f"{name} is {type(value).__name__}: pass a function, as in batch=lambda device, dtype: torch.randn(8, 3, device=device)")
    kind = card(device)
    payload = transport.dumps({"model": model, "batch": batch, "loss": loss, "optimizer": optimizer})
    job = {"kind": "call", "payload": payload, "precision": precision, "train": bool(train), "steps": steps, "assume": [parse(text) for text in assume]}
    return run(job, kind)


def run(job: "dict[str, Any]", kind: Card) -> Estimate:
    """Runs a job; a second time with the card's real size if only that shows whether it fits."""
    found, snapshot = start(job, kind)
    answer = Estimate(found, kind, snapshot)
    if answer.fits or not (answer.undecided or job["kind"] == "script"):
        return answer
    again, other = start(job, kind, capacity=answer.limit, may_fail=True)
    if again.get("out_of_memory_caught") and all(again[count] >= found[count] for count in ("steps", "calls")):
        # The script finds out what fits, for example with ever smaller batches: its second run is the answer.
        return Estimate(again, kind, other)
    return Estimate(found, kind, snapshot, fits_after_retry="error" not in again)


def start(
    job: "dict[str, Any]",
    kind: Card,
    capacity: Optional[int] = None,
    may_fail: bool = False,
    count: int = 1,
    variables: "Optional[dict[str, str]]" = None,
) -> "tuple[dict[str, Any], bytes]":
    """One process over the card; its result and its snapshot. It sees `count` cards, and `variables` beside its own."""
    with tempfile.TemporaryDirectory(prefix="gapless-estimate-") as name:
        folder = Path(name)
        (folder / "job.pickle").write_bytes(pickle.dumps({**job, "path": sys.path}))
        # The program's own words go to standard error: standard output is the answer's. One rank of several tells.
        command = [sys.executable, "-m", "gapless._estimate.child", name]
        surroundings = {**environment(kind, capacity, count), **(variables or {})}
        code, stderr = process.run(command, surroundings, folder, job["kind"] == "script", surroundings.get("RANK", "0") == "0")
        found = json.loads((folder / "result.json").read_text(encoding="utf-8")) if (folder / "result.json").is_file() else None
        snapshot = (folder / "snapshot.pickle").read_bytes() if (folder / "snapshot.pickle").is_file() else b""
    if found is None:
        raise GaplessError(process.why(code, stderr, _NOT_KNOWN))
    if found.get("refused"):
        raise GaplessError(found["error"])
    if "error" in found and not may_fail:
        if os.environ.get("GAPLESS_ESTIMATE_TELL"):
            print(found.get("traceback", "").rstrip(), file=sys.stderr)
        raise GaplessError(process.failed(found))
    chosen = {name: value for name, value in found.pop("settings", {}).items() if value is not None}
    if chosen and not chosen.keys() & (variables or {}).keys():
        # The script set them before it imported torch, but torch was imported before the script.
        return start(job, kind, capacity, may_fail, count, {**(variables or {}), **together.again(variables or {}), **chosen})
    return found, snapshot
