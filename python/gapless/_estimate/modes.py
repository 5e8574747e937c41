"""Activates our mode only in some places: not in torch's fast paths, which test for modes, nor in its compiler, but in
the threads that a program starts."""

import functools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Callable


def see_through(torch: Any) -> None:
    """Hides our mode from the fast paths of torch's transformer modules, which do not run while a mode is active."""
    plain = (torch.Tensor, torch.nn.Parameter, type(None))

    def has_torch_function(arguments: Any) -> bool:
        kinds = {type(item) for item in arguments if isinstance(item, torch.Tensor)}.difference(plain)
        return any(kind.__torch_function__ is not torch._C._disabled_torch_function_impl for kind in kinds)

    torch.overrides.has_torch_function = has_torch_function


def compile_without(torch: Any, compiles: "Callable[[bool], None]") -> None:
    """Runs compiled functions without our mode: a compiler would compile it too. flex_attention compiles on its own.
    compiles() is called when the compiler begins its work, and when it ends."""
    compile_ = torch.compile

    def compiled(model: Any = None, **words: Any) -> Any:
        if model is None:
            return lambda function: compiled(function, **words)
        made = compile_(model, **words)
        _tell(compiles)
        if isinstance(model, torch.nn.Module):
            forward = made.forward
            made.forward = _without(torch, forward)
            return made
        return _without(torch, made)

    torch.compile = compiled


def in_threads(torch: Any, mode: Any) -> None:
    """Gives the mode to threads that the program starts while it is active. Torch's own threads, such as the one that
    pins batches, need none."""
    start = threading.Thread.start

    def started(self: threading.Thread) -> None:
        target = getattr(self, "_target", None) or type(self).run
        if torch._C._len_torch_function_stack() and not (getattr(target, "__module__", None) or "").startswith("torch."):
            self.run = functools.partial(_under, mode, self.run)  # type: ignore[method-assign]
        start(self)

    threading.Thread.start = started  # type: ignore[method-assign]


def _under(mode: Any, run: "Callable[[], None]") -> None:
    with mode:
        run()


def traces(torch: Any) -> bool:
    """True if torch traces at present: then a compiler calls, with tensors that have a shape and no memory."""
    active, kinds = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey
    return any(active(kind) is not None for kind in (kinds.FAKE, kinds.PROXY, kinds.FUNCTIONAL))


def _without(torch: Any, function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **words: Any) -> Any:
        with without_modes(torch):
            # The compiler does not compile modules while there are hooks on all of them.
            hooks = (torch.nn.modules.module._global_forward_pre_hooks, torch.nn.modules.module._global_forward_hooks)
            held = [dict(each) for each in hooks]
            for each in hooks:
                each.clear()
            try:
                return function(*args, **words)
            finally:
                for each, rows in zip(hooks, held):
                    each.update(rows)

    return call


@functools.lru_cache(maxsize=1)
def _tell(compiles: "Callable[[bool], None]") -> None:
    """Reports the beginning and the end of the compiler's work from here on."""
    try:
        from torch._dynamo.callback import callback_handler
    except ImportError:
        return
    callback_handler.register_start_callback(lambda *_: compiles(True))
    callback_handler.register_end_callback(lambda *_: compiles(False))


@contextmanager
def without_modes(torch: Any) -> "Iterator[None]":
    with ExitStack() as left:
        for _ in range(torch._C._len_torch_function_stack()):
            left.enter_context(torch.overrides._pop_mode_temporarily())
        yield
