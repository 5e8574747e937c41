"""The offline packer from Python: buffers in, offsets out, by the program that comes with this package."""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from . import _program
from ._errors import GaplessError


def plan(
    buffers: Iterable[Mapping[str, Any]],
    capacity: Optional[int] = None,
    time_limit: float = 10.0,
    seed: int = 0,
    threads: int = 1,
) -> dict[str, Any]:
    """Finds an offset for each buffer. Buffers alive together do not overlap, and the peak is as low as possible.

    A buffer is a mapping with `id`, `lower`, `upper` (its lifetime, half-open) and `size` in bytes, and if needed
    `alignment`, `gaps` and a fixed `offset`. With `capacity`, the search ends at the first plan within it.

    Returns what `gapless plan --format json` prints: `peak`, `lower_bound`, `proven_optimal`, `fits`, and `buffers`
    with their offsets. If no plan is within the capacity, `fits` is False, and `conflict` names buffers that cannot fit
    together.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "buffers.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump([dict(buffer) for buffer in buffers], file)
        command = ["plan", path, "--format", "json", "--seed", str(seed), "--threads", str(threads)]
        command += ["--time-limit", f"{max(1, round(time_limit * 1000))}ms"]
        if capacity is not None:
            command += ["--capacity", str(capacity)]
        # Code 1 means that the buffers do not fit. Any other code but 0 means that the question is wrong.
        done = _program.call(command, (0, 1))
    if not done.stdout:
        raise GaplessError(_program.message(done.stderr) or "`gapless plan` gave no answer")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
