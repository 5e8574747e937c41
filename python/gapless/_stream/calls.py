"""Calls of modules that are streamed. torch.nn.Module.__call__ is wrapped, once, and each call is looked up. Modules
are left as they are: nothing is stored in them, so copies, pickles and state dicts are the same as ever."""

import functools
import sys
import weakref
from typing import Any

from .. import _dynamo, _forks
from . import moves
from .items import Place
from .runner import Runner

_lock = _forks.lock()
# By id, since modules may compare as they like. The references take entries of dead modules out.
_places: dict[int, Place] = {}
_references: dict[int, Any] = {}
_original: Any = None
_wrapper: Any = None
_code: Any = None
_original_apply: Any = None
_wrapped_apply: Any = None


def place_of(module: Any) -> "Place | None":
    return _places.get(id(module))


def add(torch: Any, places: list[tuple[Any, Place]]) -> None:
    with _lock:
        _install(torch)
        for module, place in places:
            key = id(module)
            _references[key] = weakref.ref(module, functools.partial(_died, key))
            _places[key] = place


def forget(places: list[tuple[Any, Place]]) -> None:
    with _lock:
        for module, place in places:
            if _places.get(id(module)) is place:
                _places.pop(id(module), None)
                _references.pop(id(module), None)
        if not _places:
            _uninstall()


def remove(runner: Any) -> None:
    with _lock:
        for key in [key for key, place in _places.items() if place.runner is runner]:
            _places.pop(key, None)
            _references.pop(key, None)
        if not _places:
            _uninstall()


def watch_moves(torch: Any) -> None:
    """From now on models that are moved or converted are looked at."""
    global _original_apply, _wrapped_apply
    if _wrapped_apply is None:
        _original_apply = torch.nn.Module._apply
        torch.nn.Module._apply = _wrapped_apply = moves.wrap(torch, _original_apply, place_of)


def _died(key: int, reference: Any) -> None:
    # The garbage collector comes here in the middle of anything: the runner looks at its weights later.
    if _references.get(key) is reference:
        _references.pop(key, None)
        place = _places.pop(key, None)
        if place is not None:
            place.is_dead = place.runner.has_dead = True


def _install(torch: Any) -> None:
    global _original, _wrapper
    watch_moves(torch)
    if _wrapper is not None:
        return
    _original = torch.nn.Module.__call__
    _wrapper = _wrap(torch, _original)
    torch.nn.Module.__call__ = _wrapper
    _dynamo.tell_call(_original, _wrapper)


def _uninstall() -> None:
    """Takes the wrapper off, unless another one was put over it: then it stays, and finds no module."""
    global _wrapper, _wrapped_apply
    torch = sys.modules["torch"]
    if torch.nn.Module._apply is _wrapped_apply and moves.taker is None:
        torch.nn.Module._apply = _original_apply
        _wrapped_apply = None
    if torch.nn.Module.__call__ is _wrapper:
        torch.nn.Module.__call__ = _original
        _dynamo.tell_call(_wrapper, _original)
        _wrapper = None


def settle(runner: Any) -> None:
    """Two interrupts have left calls of this thread behind: they are ended, except those that are under way."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        if frame.f_code is _code and frame.f_locals.get("runner") is runner:
            depth = max(depth, frame.f_locals.get("depth", -1) + 1)
        frame = frame.f_back  # type: ignore[assignment]
    runner.leave(depth, False)


def _wrap(torch: Any, original: Any) -> Any:
    # Looked up once: this runs with each call of each module.
    places = _places
    is_compiling = torch.compiler.is_compiling
    callback: Any = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        place = places.get(id(self))
        # While torch.compile traces, the module does not run.
        if place is None or is_compiling():
            return original(self, *args, **kwargs)
        runner = place.runner
        local, is_whole = runner.local, False
        if local.is_leaving:
            settle(runner)
        depth = len(local.stack)
        try:
            # A compiled module calls those below it without coming here.
            runner.enter(place, self._compiled_call_impl is not None or callable(callback()), args, kwargs)
            found = original(self, *args, **kwargs)
            is_whole = True
            return found
        finally:
            # Python delivers interrupts after calls, so none comes between these two lines.
            local.is_leaving = True
            try:
                runner.leave(depth, is_whole)
            except BaseException:
                # An interrupt came in the middle: what is left of it is done. If another one comes, settle() does it.
                runner.leave(depth, is_whole)
                raise

    global _code
    _code = call.__code__
    functools.update_wrapper(call, original)
    _dynamo.skip(torch, call, Runner.enter, Runner.leave)
    return call
