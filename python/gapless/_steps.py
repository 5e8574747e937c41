"""Where training steps begin and end: gapless.step() and optimizers' steps, told to the library.

A recording keeps the marks; plans for steps that repeat begin and end at them. Without either nothing is registered
and step() does nothing. Once gradients are given back (zero_grad) the library may put a plan in place, before the next
step begins.
"""

import ctypes
import functools
import sys
from typing import Any, Callable, Optional

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
    host = _host_step()
    if host is not None:
        host()
    if _library is not None:
        if _steps:
            _mark("gapless.step", 1)
            _pause()
        _steps += 1
        _mark("gapless.step", 0)


@functools.lru_cache(maxsize=1)
def _host_step() -> Optional[Callable[[], object]]:
    """The host allocator's function for steps, if libgapless_malloc.so is preloaded: it keeps what steps use again."""
    try:
        function = ctypes.CDLL(None).gapless_host_step
    except (AttributeError, OSError, TypeError):
        return None
    function.restype = None
    return function


def _device() -> int:
    return int(_torch.cuda.current_device()) if _torch.cuda.is_initialized() else 0


def _mark(name: str, stage: int) -> None:
    if _library is not None:
        _library.optional("gapless_mark", name.encode(), stage, _device())


def _pause() -> None:
    if _library is not None and _torch.cuda.is_initialized() and _library.has("gapless_pause"):
        _library.optional("gapless_pause", _device())


def _watch_optimizers() -> None:
    """An optimizer's step ends a training step, as its own annotation in torch's snapshots does."""
    module = sys.modules.get("torch.optim.optimizer")
    before = getattr(module, "register_optimizer_step_pre_hook", None)
    after = getattr(module, "register_optimizer_step_post_hook", None)
    if module is None or before is None or after is None:
        return

    def hook(stage: int) -> Callable[[Any, Any, Any], None]:
        def tell(optimizer: Any, args: Any, kwargs: Any) -> None:
            _mark(f"Optimizer.step#{type(optimizer).__name__}.step", stage)

        return tell

    before(hook(0))
    after(hook(1))
    _watch_zero_grad(module.Optimizer)


def _watch_zero_grad(optimizers: Any) -> None:
    """Wraps zero_grad, for which torch has no hooks."""
    original = optimizers.zero_grad

    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        # A call that torch.compile traces is no step of the program. Early versions of torch do not tell.
        is_compiling = getattr(getattr(_torch, "compiler", None), "is_compiling", None)
        if is_compiling is None or not is_compiling():
            _pause()
        return result

    optimizers.zero_grad = zero_grad
