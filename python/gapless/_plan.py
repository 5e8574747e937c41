"""The offline packer from Python: buffers in, offsets out, by the program that comes with this package."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, Optional

from ._errors import GaplessError


def _program() -> str:
    """The program: GAPLESS_PROGRAM, beside this interpreter, or on the path."""
    named = os.environ.get("GAPLESS_PROGRAM")
    beside = os.path.join(os.path.dirname(sys.executable), "gapless")
    found = named or (beside if os.path.isfile(beside) else shutil.which("gapless"))
    if not found or not os.path.isfile(found):
        raise GaplessError("the program `gapless` was not found: run `pip install .` in the repository, or name it in GAPLESS_PROGRAM")
    return found


def plan(
    buffers: Iterable[Mapping[str, Any]],
    capacity: Optional[int] = None,
    time_limit: float = 10.0,
    seed: int = 0,
    threads: int = 1,
) -> dict[str, Any]:
    """An offset for each buffer, so that buffers alive together do not overlap and the peak is as low as it can be.

    A buffer is a mapping with `id`, `lower`, `upper` (its lifetime, half-open) and `size` in bytes, and where needed
    `alignment`, `gaps` and `offset` (fixed). With `capacity`, the first plan that keeps within it is enough. The
    answer is that of `gapless plan --format json`: `peak`, `lower_bound`, `proven_optimal`, `fits` and `buffers` with
    their offsets; where it does not fit, `fits` is False and `conflict` names buffers that cannot fit together.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "buffers.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump([dict(buffer) for buffer in buffers], file)
        command = [_program(), "plan", path, "--format", "json", "--seed", str(seed), "--threads", str(threads)]
        command += ["--time-limit", f"{max(1, round(time_limit * 1000))}ms"]
        if capacity is not None:
            command += ["--capacity", str(capacity)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    # 1 is the answer "it does not fit"; anything else that is not 0 is about the question.
    if done.returncode not in (0, 1) or not done.stdout:
        raise GaplessError(done.stderr.strip() or f"gapless plan ended with {done.returncode}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
