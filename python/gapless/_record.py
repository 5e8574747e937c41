"""The flight recorder: enable(record="run.gtrace") or GAPLESS_RECORD, and the marks of steps.

The library records; this file says where to, and tells it when steps and optimizers begin and end. Each process has a file of its own: of a
run with ranks each puts its rank into the name, and a process that another recorded one started its number.
"""

import atexit
import os
import sys
from typing import Any, Dict, Mapping, Optional

from ._errors import OptionError
from ._library import Library

# Set for child processes: the name as it is was taken.
_TAKEN = "GAPLESS_RECORD_OWNER"

_library: Optional[Library] = None
_torch: Any = None
_steps = 0


def file_of(path: str, environ: Mapping[str, str], pid: int) -> str:
    """The file of this process: run.gtrace, run.rank3.gtrace or run.4711.gtrace."""
    rank = environ.get("RANK")
    if rank is not None and rank.isdigit() and environ.get("WORLD_SIZE", "1") != "1":
        mark = f".rank{rank}"
    elif environ.get(_TAKEN, str(pid)) != str(pid):
        mark = f".{pid}"
    else:
        return path
    stem, extension = os.path.splitext(path)
    return stem + mark + extension


def start(torch: Any, library: Library, chosen: Dict[str, Any]) -> None:
    """Records from now on. Before torch's CUDA starts."""
    global _library, _torch
    pid = os.getpid()
    path = os.path.abspath(file_of(chosen["record"], os.environ, pid))
    folder = os.path.dirname(path)
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise OptionError(f"record={path} cannot be written: name a file in a folder that is there and may be written to")
    stacks = chosen.get("record_stacks", False)
    if library.optional("gapless_record", os.fsencode(path), int(stacks), chosen.get("record_limit", 0)) != 0:
        raise OptionError(library.last_error())
    os.environ.setdefault(_TAKEN, str(pid))
    _library, _torch = library, torch
    _watch_optimizers(torch)
    atexit.register(_end, path, pid)


def step() -> None:
    """Marks that a training step begins here, and that the one before has ended. Without a recording it does nothing."""
    global _steps
    if _library is not None:
        if _steps:
            _mark("gapless.step", 1)
        _steps += 1
        _mark("gapless.step", 0)


def _mark(name: str, stage: int) -> None:
    device = _torch.cuda.current_device() if _torch.cuda.is_initialized() else 0
    _library.optional("gapless_mark", name.encode(), stage, device)


def _watch_optimizers(torch: Any) -> None:
    """An optimizer's step ends a training step, as its own annotation in torch's snapshots does."""
    module = sys.modules.get("torch.optim.optimizer")
    before = getattr(module, "register_optimizer_step_pre_hook", None)
    after = getattr(module, "register_optimizer_step_post_hook", None)
    if before is None or after is None:
        return

    def hook(stage):
        def tell(optimizer, args, kwargs):
            _mark(f"Optimizer.step#{type(optimizer).__name__}.step", stage)

        return tell

    before(hook(0))
    after(hook(1))


def _end(path: str, owner: int) -> None:
    if os.getpid() != owner or _library is None:
        return
    lost = _library.optional("gapless_record_end")
    if lost:
        try:
            print(f"gapless: {lost} events are missing in {path}: they came faster than they could be written", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass
