"""The native library of weights: where it is, and its functions with their types.

GAPLESS_LOADER names another file than the one in this package.
"""

import ctypes
import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Callable, Optional

from .._errors import GaplessError, OptionError
from . import _errors

FILE_NAME = "libgapless_loader.so"


class Piece(ctypes.Structure):
    """Bytes of a tensor, and the address that they go to."""

    _fields_ = [("tensor", ctypes.c_uint64), ("begin", ctypes.c_uint64), ("end", ctypes.c_uint64), ("target", ctypes.c_uint64)]


class Settings(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.c_int32),
        ("threads", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("stream", "staging", "limit_rate", "piece", "window")),
        ("timeout", ctypes.c_uint32),
        ("ways", ctypes.c_uint32),
        ("staged", ctypes.c_uint32),
    ]


class Progress(ctypes.Structure):
    """The work done so far. `read` are bytes of files, `cold` those that were read past the page cache."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("done", "total", "read", "cold", "on_card", "on_host", "mapped", "queued")]
    done: int
    total: int
    read: int
    cold: int
    on_card: int
    on_host: int
    mapped: int
    queued: int


class Held(ctypes.Structure):
    """The bytes of a tensor that is in memory."""

    _fields_ = [("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("is_on_card", ctypes.c_uint64)]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "open": (ctypes.c_void_p, [ctypes.c_char_p]),
    "describe": (ctypes.c_void_p, [ctypes.c_void_p]),
    "end_text": (None, [ctypes.c_void_p]),
    "close": (None, [ctypes.c_void_p]),
    "start": (
        ctypes.c_int,
        [
            ctypes.c_void_p,
            ctypes.POINTER(Piece),
            ctypes.c_size_t,
            ctypes.POINTER(Settings),
            ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_void_p),
        ],
    ),
    "wait": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(Progress)]),
    "cancel": (None, [ctypes.c_void_p]),
    "end": (None, [ctypes.c_void_p]),
    "pack": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32]),
    "save": (
        ctypes.c_int,
        [
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.POINTER(Held),
            ctypes.c_size_t,
            ctypes.POINTER(Settings),
            ctypes.c_int,
        ],
    ),
    "encode": (ctypes.c_size_t, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]),
    "decode": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t]),
    "staging": (ctypes.c_uint64, []),
    "threads": (ctypes.c_uint32, []),
    "release": (None, []),
    "last_error": (ctypes.c_char_p, []),
}


def path() -> str:
    """The path of the library. If there is no such file, the error says what to do."""
    named = os.environ.get("GAPLESS_LOADER")
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = named or os.path.join(package, FILE_NAME)
    if not os.path.isfile(found):
        if named:
            raise GaplessError(f"GAPLESS_LOADER is {named}, and there is no such file: unset it to use the one that was installed")
        raise GaplessError(f"{found} is missing: this is a source tree or a damaged installation; run `pip install .` in the repository")
    return os.path.abspath(found)


@functools.cache
def _library(file: str) -> dict[str, Any]:
    try:
        library = ctypes.CDLL(file)
    except OSError as error:
        raise GaplessError(f"the library cannot be loaded: {error}") from None
    functions: dict[str, Any] = {}
    for name, (result, arguments) in _FUNCTIONS.items():
        try:
            function = getattr(library, f"gapless_loader_{name}")
        except AttributeError:
            raise GaplessError(f"{file} has no gapless_loader_{name}: it is not of this version of gapless") from None
        function.restype, function.argtypes = result, arguments
        functions[name] = function
    return functions


def function(name: str) -> Any:
    """A function of the library, as ctypes has it."""
    return _library(path())[name]


def _failed(functions: dict[str, Any]) -> _errors.WeightsError:
    return _errors.of(json.loads(functions["last_error"]() or b"{}"))


class Catalogue:
    """A file or a folder, opened: its tensors, and a way to load parts of them."""

    def __init__(self, path_of_model: "os.PathLike[str] | str") -> None:
        self._handle = None
        self._functions = _library(path())
        self._handle = self._functions["open"](_encoded(path_of_model))
        if not self._handle:
            raise _failed(self._functions)
        text = self._functions["describe"](self._handle)
        if not text:
            raise _failed(self._functions)
        try:
            described = json.loads(ctypes.string_at(text))
        finally:
            self._functions["end_text"](text)
        self.files: list[dict[str, Any]] = described["files"]
        self.tensors: list[dict[str, Any]] = described["tensors"]
        for tensor in self.tensors:
            tensor["file_shape"] = tensor["shape"]
            if tensor["dtype"] == "F4" and tensor["shape"] and tensor["shape"][-1] % 2 == 0:
                tensor["shape"] = [*tensor["shape"][:-1], tensor["shape"][-1] // 2]
            elif tensor["dtype"] == "F4":
                # torch has only pairs of values.
                tensor["dtype"] = "F4, an odd number of values in a row"

    def __del__(self) -> None:
        # Callers of safe_open() that use no `with` leave it open.
        self.close()

    def close(self) -> None:
        if self._handle:
            self._functions["close"](self._handle)
            self._handle = None

    @property
    def is_closed(self) -> bool:
        return not self._handle

    def _open(self) -> Any:
        if self.is_closed:
            raise _errors.WeightsError("the files are closed: open them again")
        return self._handle

    def __enter__(self) -> "Catalogue":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def threads(self) -> int:
        """Threads that a load to a card has at most if the library chooses."""
        return int(self._functions["threads"]())

    def staging(self) -> int:
        """Bytes of staging memory on a card for each thread."""
        return int(self._functions["staging"]())

    def load(self, pieces: Sequence[tuple[int, int, int, int]], settings: Settings, told: Optional[Callable[[Progress], None]] = None) -> Progress:
        """Fills the targets; returns when all of it is there. An interrupt cancels."""
        entries = (Piece * max(len(pieces), 1))(*(Piece(*piece) for piece in pieces))
        handle, progress = ctypes.c_void_p(), Progress()
        try:
            # The library writes the handle: an interrupt comes when the call is over, and must find it.
            if self._functions["start"](self._open(), entries, len(pieces), ctypes.byref(settings), None, ctypes.byref(handle)):
                raise _failed(self._functions)
            while True:
                state = self._functions["wait"](handle, 100, ctypes.byref(progress))
                if told is not None:
                    told(progress)
                if state == 2:
                    raise _failed(self._functions)
                if state == 1:
                    return progress
        finally:
            # Waits for the threads: nothing is written to a target afterwards.
            self._functions["end"](handle)


def _encoded(given: "os.PathLike[str] | str") -> bytes:
    """A path as the library takes it, which ends at the first zero."""
    name = os.fsencode(given)
    if b"\0" in name:
        raise OptionError(f"invalid path {given!r}: it has a zero in it")
    return name


def pack(source: "os.PathLike[str] | str", destination: "os.PathLike[str] | str", threads: int) -> None:
    """Packs one file, as `gapless weights pack` does."""
    functions = _library(path())
    if functions["pack"](_encoded(source), _encoded(destination), threads):
        raise _failed(functions)


def save(destination: "os.PathLike[str] | str", header: bytes, held: Sequence[tuple[int, int, int]], settings: Settings, is_packed: bool) -> None:
    """Writes tensors that are in memory as one file, which appears whole or not at all."""
    functions = _library(path())
    entries = (Held * max(len(held), 1))(*(Held(*one) for one in held))
    if functions["save"](_encoded(destination), header, len(header), entries, len(held), ctypes.byref(settings), int(is_packed)):
        raise _failed(functions)


def release() -> None:
    """Gives back pinned memory, streams and kernels that are kept for the next load."""
    _library(path())["release"]()


class Bar:
    """A line on standard error: how much is there, and how fast it comes."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        took = max(time.monotonic() - self._began, 1e-6)
        share = progress.done / progress.total if progress.total else 1.0
        filled = int(30 * share)
        amount = f"{progress.done / 1e9:.2f} of {progress.total / 1e9:.2f} GB  {progress.done / took / 1e9:.2f} GB/s"
        line = f"\rweights [{'#' * filled}{' ' * (30 - filled)}] {amount} "
        sys.stderr.write(line + ("\n" if progress.done == progress.total else ""))
        sys.stderr.flush()
