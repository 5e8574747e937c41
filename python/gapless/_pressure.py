"""Handlers that are asked before a request for memory fails: gapless.on_pressure(fn).

The library calls them one after the other, in the thread whose request failed, with Python's lock and without any of
its own. A handler that was registered before enable() is called only after it, and never if Gapless is off. At exit
all of them are removed, before the interpreter ends.
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

# The return value that has the library check whether something was freed.
_LOOK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True)
class Pressure:
    """The memory that a request lacks, in bytes."""

    device: int
    requested: int
    # Bytes that have to become free for it, as far as that is known.
    missing: int
    allocated: int
    reserved: int
    # The most that this process may hold; None: all that the device has.
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
        """Ends the calls. A second time does nothing."""
        with _lock:
            if _handles.pop(self._key, None) is not None and self._id is not None and _library is not None:
                _library.optional("gapless_remove_pressure", self._id)

    def __enter__(self) -> "Handle":
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()


# Reentrant: a finalizer or a signal handler may run in the same thread while it holds the lock.
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
        # An exception cannot leave a callback of ctypes: the main thread gets it when it runs Python again.
        _thread.interrupt_main()
    except BaseException as error:
        _tell(handle, error)
    return 0


# Lives as long as the module: the library keeps its address.
_callback = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.POINTER(_Native), ctypes.c_void_p)(_ask)


def _tell(handle: Handle, error: BaseException) -> None:
    """Warns once for each handler: a program that catches failures would get the warning each time."""
    if handle._told:
        return
    handle._told = True
    name = getattr(handle._fn, "__qualname__", repr(handle._fn))
    text = f"the handler {name} of gapless.on_pressure failed ({type(error).__name__}: {error}), and is asked again next time"
    try:
        warnings.warn(text, GaplessWarning, stacklevel=3)
    except Warning:
        # The program has made warnings errors, and an error cannot leave the callback.
        print(f"gapless: {text}", file=sys.stderr, flush=True)
