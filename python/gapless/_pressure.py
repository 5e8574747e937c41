"""Handlers that are asked before a request for memory fails: gapless.on_pressure(fn).

The library calls them one after the other, in the thread whose request failed, with Python's lock and without any of
its own. Registered before enable(), a handler waits for it; where Gapless is off it is never called. At the end of the
process all of them are removed, before Python goes.
"""

import _thread
import atexit
import ctypes
import dataclasses
import itertools
import sys
import warnings
from typing import Any, Callable, Optional

from . import _forks
from ._errors import GaplessWarning
from ._library import Library

# The library's word for: look whether something was freed.
_LOOK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Pressure:
    """What a request lacks, in bytes."""

    device: int
    requested: int
    # What has to be free in addition, as far as that is known.
    missing: int
    allocated: int
    reserved: int
    # The most that this process may hold; None: what the device has.
    limit: Optional[int]


class _Native(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_int32),
        ("requested", ctypes.c_uint64),
        ("missing", ctypes.c_uint64),
        ("allocated", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("limit", ctypes.c_uint64),
    ]


class Handle:
    """A registered handler. It is a context manager too: at the end of the block the handler is removed."""

    def __init__(self, fn: Callable[[Pressure], Any]) -> None:
        self._fn = fn
        self._key = next(_keys)
        self._id: Optional[int] = None
        self._told = False

    def __call__(self, pressure: Pressure) -> Any:
        """The handler itself, so that one that was decorated can still be called."""
        return self._fn(pressure)

    def remove(self) -> None:
        """No longer asks it. A second time does nothing."""
        with _lock:
            if _handles.pop(self._key, None) is not None and self._id is not None and _library is not None:
                _library.optional("gapless_remove_pressure", self._id)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()


# Finalizers and signal handlers may come back in the middle, in the same thread.
_lock = _forks.lock()
_keys = itertools.count(1)
_handles: dict[int, Handle] = {}
_library: Optional[Library] = None


def on_pressure(fn: Callable[[Pressure], Any]) -> Handle:
    """As gapless.on_pressure."""
    if not callable(fn):
        raise TypeError(f"on_pressure takes a function of one argument, not {type(fn).__name__}")
    handle = Handle(fn)
    with _lock:
        _handles[handle._key] = handle
        if _library is not None:
            _register(_library, handle)
    return handle


def attach(library: Library) -> None:
    """Gapless is on: those that were registered before are asked from now on."""
    global _library
    if not library.has("gapless_on_pressure"):
        return
    with _lock:
        _library = library
        for handle in list(_handles.values()):
            if handle._id is None:
                _register(library, handle)


def _register(library: Library, handle: Handle) -> None:
    callback = ctypes.cast(_callback, ctypes.c_void_p)
    handle._id = library.optional("gapless_on_pressure", callback, handle._key)


@atexit.register
def _end() -> None:
    for handle in list(_handles.values()):
        handle.remove()


def _ask(told: Any, key: Optional[int]) -> int:
    handle = _handles.get(key or 0)
    if handle is None:
        return 0
    try:
        native = told.contents
        freed = handle._fn(Pressure(native.device, native.requested, native.missing, native.allocated, native.reserved, native.limit or None))
        if freed is None:
            return _LOOK
        return min(max(int(freed), 0), _LOOK - 1) if isinstance(freed, int) else int(bool(freed))
    except KeyboardInterrupt:
        # It cannot leave this function: the main thread gets it when it runs Python again.
        _thread.interrupt_main()
    except BaseException as error:
        _tell(handle, error)
    return 0


# Lives as long as the module: the library keeps its address.
_callback = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(_Native), ctypes.c_void_p)(_ask)


def _tell(handle: Handle, error: BaseException) -> None:
    """Once for each handler: a program that catches failures would be told each time."""
    if handle._told:
        return
    handle._told = True
    name = getattr(handle._fn, "__qualname__", repr(handle._fn))
    text = f"the handler {name} of gapless.on_pressure failed ({type(error).__name__}: {error}), and is asked again next time"
    try:
        warnings.warn(text, GaplessWarning, stacklevel=3)
    except Warning:
        # Warnings are errors here, and this one has nowhere to go.
        print(f"gapless: {text}", file=sys.stderr, flush=True)
