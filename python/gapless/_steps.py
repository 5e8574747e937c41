"""Where training steps begin and end: gapless.step() and optimizers' steps, told to the library.

A recording keeps the marks; plans for steps that repeat begin and end at them. Without either nothing is registered and step() does nothing.
"""

import sys
from typing import Any, Optional

from ._library import Library

_library: Optional[Library] = None
_torch: Any = None
_steps = 0


def watch(torch: Any, library: Library) -> None:
    """Tells the library of steps from now on."""
    global _library, _torch
    if not library.has("gapless_mark"):
        return
    if _library is None:
        _watch_optimizers()
    _library, _torch = library, torch


def step() -> None:
    """Marks that a training step begins here, and that the one before has ended."""
    global _steps
    if _library is not None:
        if _steps:
            _mark("gapless.step", 1)
        _steps += 1
        _mark("gapless.step", 0)


def _mark(name: str, stage: int) -> None:
    device = _torch.cuda.current_device() if _torch.cuda.is_initialized() else 0
    _library.optional("gapless_mark", name.encode(), stage, device)


def _watch_optimizers() -> None:
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
