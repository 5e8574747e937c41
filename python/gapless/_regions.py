"""Regions: memory that sleeps and wakes, at the same addresses.

    with gapless.region("weights"):        # what any thread allocates here belongs to the region
        model = Model().cuda()

    gapless.sleep("weights")               # its bytes are on the host, its memory is the card's again
    gapless.wake("weights")                # the same tensors, the same addresses; CUDA graphs replay

The bookkeeping and the copies are the library's; see docs/serving.md for what is kept, and when.
"""

import functools
import inspect
import json
import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable, Optional, TypeVar, Union, cast

from . import _asleep, _forks, _options, _session
from ._errors import GaplessError, OptionError

_Function = TypeVar("_Function", bound=Callable[..., Any])
# The library's code for: trackers have to hear of memory before the library can give it back.
_UNTOLD = 2
# In the order of the library's codes.
_KEEP = {"host": 0, "discard": 1, "disk": 2, "compressed": 3}


@dataclass(frozen=True)
class Moved:
    """The bytes that a call of sleep() or wake() moved."""

    name: str
    copied_bytes: int
    """Bytes that were copied between card and host."""
    card_bytes: int
    """Bytes of pages that the card got back, or that the region holds again."""
    seconds: float

    def __str__(self) -> str:
        speed = f", {self.copied_bytes / 1e9 / self.seconds:.1f} GB/s" if self.copied_bytes and self.seconds else ""
        return f"{self.name}: {self.card_bytes / 2**30:.2f} GiB in {1e3 * self.seconds:.1f} ms{speed}"


@dataclass(frozen=True)
class Region:
    """The present state of a region, on all cards."""

    name: str
    keep: str
    live: int
    """Bytes of tensors that are awake."""
    held: int
    """Bytes of the card that the region holds."""
    asleep: int
    """Bytes of tensors that sleep."""
    host: int
    """Bytes that the host keeps for them."""


class region:
    """Puts what the program allocates in a scope into a region: `with gapless.region("weights"):`, or as a decorator.

    name     the region's name, for sleep() and wake()
    keep     what happens to its bytes while it sleeps:
             "host"        Gapless copies them to pinned host memory
             "disk"        to a file in GAPLESS_SLEEP_DIR, or in the system's folder for temporary files
             "compressed"  to ordinary host memory, compressed without a loss: bf16 weights take two thirds. It is
                           slower than "host"
             "discard"     nowhere: fill the tensors again after waking
    prepare  True: when the scope ends, Gapless pins host memory for all that the region holds, so that its first sleep
             is as fast as later ones

    A scope belongs to the process, not to a thread, because backward passes run in other threads. The newest open scope
    counts. A CUDA graph that is captured while a region is open belongs to it, with its memory. You can enter one
    object many times.
    """

    def __init__(self, name: str, keep: str = "host", prepare: bool = False) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_/-]{1,63}", name):
            raise OptionError(f"invalid name {name!r} of a region: write 1 to 63 letters, digits, _ - or /")
        if keep not in _KEEP:
            raise OptionError(f"invalid keep={keep!r}: write one of {', '.join(_KEEP)}")
        self.name, self.keep, self.prepare = name, keep, prepare
        self._tokens: list[int] = []
        self._lock = _forks.lock()

    def __repr__(self) -> str:
        return f"gapless.region({self.name!r}, keep={self.keep!r})"

    def __enter__(self) -> "region":
        token = _open(self.name, self.keep)
        with self._lock:
            self._tokens.append(token)
        return self

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            token = self._tokens.pop()
        _session._on().optional("gapless_region_close", token)
        if self.prepare and self.keep == "host":
            held = next((found.held for found in regions() if found.name == self.name), 0)
            if held:
                prepare_host(held)

    def __call__(self, function: _Function) -> _Function:
        """A function that runs in the scope; a generator would leave it between its steps, so that is refused."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function):
            raise OptionError(f"{function.__name__} is a generator or a coroutine: open the region inside of it")

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return cast(_Function, inside)


class no_region:
    """Keeps what the program allocates in this scope out of all regions: for memory that must stay awake."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def __enter__(self) -> "no_region":
        self._tokens.append(_open(None, "host"))
        return self

    def __exit__(self, *_: Any) -> None:
        _session._on().optional("gapless_region_close", self._tokens.pop())


@functools.cache
def _hand_codec_over(library: Any) -> None:
    """Gives the library the codec, which is in the library of weights."""
    import ctypes

    from .weights import _native

    codec = [ctypes.cast(_native.function(name), ctypes.c_void_p) for name in ("encode", "decode")]
    library.optional("gapless_region_codec", *codec)


def _open(name: Optional[str], keep: str) -> int:
    library = _session._on()
    if keep == "compressed":
        _hand_codec_over(library)
    token = int(library.optional("gapless_region_open", name.encode() if name is not None else None, _KEEP[keep]))
    if token < 0:
        raise GaplessError(library.last_error())
    return token


def _moved(function: str, names: tuple[str, ...], *more: int) -> list[Moved]:
    import ctypes

    library = _session._on()
    out = (ctypes.c_uint64 * 4)()
    begin = time.perf_counter()
    while True:
        code = library.optional(function, *(name.encode() for name in names), *more, out)
        _tell_trackers(library)
        if code != _UNTOLD:
            break
    seconds = time.perf_counter() - begin
    if code != 0:
        _raise(code, library.last_error())
    return [Moved(name, int(out[2 * at]), int(out[2 * at + 1]), seconds) for at, name in enumerate(names)]


def _tell_trackers(library: Any) -> None:
    """Tells trackers that registered segments (NCCL) what goes and comes. They may throw, so torch has to call them."""
    if library.has("gapless_has_untold") and library.optional("gapless_has_untold") and _session._overlay:
        from . import _torch

        _torch.import_torch()._C._cuda_getMemoryFraction(0)


def _raise(code: int, message: str) -> None:
    if code == 1:
        from . import _torch

        raise _torch.import_torch().OutOfMemoryError(message)
    raise GaplessError(message)


def _is_guarded(guard: Optional[bool]) -> bool:
    if guard is not None:
        return guard
    text = os.environ.get("GAPLESS_SLEEP_GUARD", "1").strip().lower()
    if text not in ("0", "1", "on", "off"):
        raise OptionError(f"invalid GAPLESS_SLEEP_GUARD={text!r}: write 1 or 0")
    return text in ("1", "on")


def _guard(name: str) -> None:
    """Torch functions of this thread that would touch the region raise from now on."""
    library = _session._on()
    if _session.enabled() and library.has("gapless_asleep_json"):
        _asleep.changed(library, fell_asleep=name)


def sleep(name: str, verify: bool = False, guard: Optional[bool] = None) -> Moved:
    """Puts a region to sleep: Gapless waits for its work, keeps its bytes, and gives its memory back to the card. Its
    tensors keep their addresses. You may free them, but nothing may use them before wake().

    verify  compare checksums of the bytes, on the host and on the card, when the region wakes
    guard   torch functions that would touch the region raise gapless.AsleepError while it sleeps, in this thread and in
            its backward passes. By default True, or what GAPLESS_SLEEP_GUARD says
    """
    guard = _is_guarded(guard)
    moved = _moved("gapless_region_sleep", (name,), int(verify))[0]
    if guard:
        _guard(name)
    return moved


def wake(name: str) -> Moved:
    """Wakes a region: its bytes are again where they were. If the card has too little memory, it raises
    torch.OutOfMemoryError, and the region stays asleep and complete."""
    moved = _moved("gapless_region_wake", (name,))[0]
    _asleep.changed(_session._on())
    return moved


def switch(sleep: str, wake: str, verify: bool = False, guard: Optional[bool] = None) -> tuple[Moved, Moved]:
    """Puts one region to sleep and wakes another: at the same time, if the card has room for both."""
    guard = _is_guarded(guard)
    try:
        slept, woke = _moved("gapless_region_switch", (sleep, wake), int(verify))
    finally:
        # Also after a failure: the first may sleep, and the message says so.
        _asleep.changed(_session._on())
        if guard and any(found.name == sleep and found.asleep for found in regions()):
            _guard(sleep)
    return slept, woke


def prepare_host(size: Union[int, str], device: Any = None) -> None:
    """Pins host memory for regions that will sleep, so that their first sleep is as fast as later ones. The memory
    stays pinned for regions and for offload."""
    try:
        bytes_ = _options.positive_bytes(size)
    except ValueError as error:
        raise OptionError(f"invalid size {size}: {error}") from None
    library = _session._on()
    if library.optional("gapless_region_prepare", _session._index(device), bytes_) != 0:
        raise GaplessError(library.last_error())


def regions() -> list[Region]:
    """All regions of this process."""
    import ctypes

    library = _session._on()
    room = 1 << 12
    while True:
        text = ctypes.create_string_buffer(room)
        length = library.optional("gapless_regions_json", text, room)
        if length < room:
            return [Region(**found) for found in json.loads(text.raw[:length])]
        room = 2 * length


def sleeps(name: str) -> bool:
    """True if a region sleeps, also if none of its tensors is left."""
    return any(found == name for found, _ in _asleep.read(_session._on()))


def is_asleep(tensor: Any) -> bool:
    """Whether the memory of a tensor sleeps."""
    return bool(_session._on().optional("gapless_is_asleep", tensor.untyped_storage().data_ptr()))


def retain(name: str, kept: bool = True) -> None:
    """Sets whether the host keeps a region's bytes after it wakes, in the same place for the next sleep. kept_bytes()
    reads them as they were when the region last slept. It needs keep="host"."""
    _retain(name, int(kept))


def _retain(name: str, how: int) -> None:
    library = _session._on()
    if library.optional("gapless_region_retain", name.encode(), how) != 0:
        raise GaplessError(library.last_error())


def drop_kept(name: str) -> None:
    """Drops the bytes that retain() kept of a region which is awake."""
    _retain(name, -1)


def show_files_in(folder: Optional[str]) -> None:
    """Regions with keep="disk" write files with names into this folder from now on; None: files without names."""
    _session._on().optional("gapless_region_files", os.fsencode(folder) if folder is not None else None)


def kept_bytes(tensor: Any, copy: bool = True) -> Any:
    """Returns the bytes of a contiguous tensor that sleeps, as a new tensor on the host, or None if none are kept.

    copy  False: if the bytes lie side by side on the host, the tensor is that memory itself. It is valid until the
          region wakes, or, if its bytes are retained, until it sleeps again
    """
    from . import _torch

    torch = _torch.import_torch()
    if not tensor.is_contiguous():
        raise GaplessError("only the bytes of a contiguous tensor can be read while it sleeps")
    if not copy and tensor.nbytes:
        at = _session._on().optional("gapless_region_kept_at", tensor.data_ptr(), tensor.nbytes)
        if at:
            import ctypes

            memory = (ctypes.c_uint8 * tensor.nbytes).from_address(at)
            return torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype).view(tensor.shape)
    found = torch.empty(tensor.shape, dtype=tensor.dtype)
    library = _session._on()
    code = library.optional("gapless_region_read", tensor.data_ptr(), found.nbytes, found.data_ptr())
    if code < 0:
        raise GaplessError(library.last_error())
    return found if code == 0 else None


def move_to_region(what: Any, name: str, keep: str = "host") -> int:
    """Moves a tensor, tensors, or the parameters and buffers of a module into a region. Returns the bytes moved.

    Gapless copies the bytes to new addresses, so call it before you capture a CUDA graph. Tensors that share memory
    still share it afterwards.
    """
    from . import _torch

    torch = _torch.import_torch()
    tensors = _tensors(torch, what)
    moved = 0
    new: dict[int, Any] = {}
    with torch.no_grad(), region(name, keep=keep):
        for tensor in tensors:
            if tensor.device.type != "cuda":
                continue
            old = tensor.untyped_storage()
            if old.data_ptr() not in new:
                fresh = torch.UntypedStorage(old.nbytes(), device=tensor.device)
                fresh.copy_(old)
                new[old.data_ptr()] = (old, fresh)
                moved += old.nbytes()
            # Set by .data, so that a parameter stays the object that an optimizer knows.
            fresh = new[old.data_ptr()][1]
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(fresh, tensor.storage_offset(), tensor.size(), tensor.stride())
    return moved


def _tensors(torch: Any, what: Any) -> Iterable[Any]:
    if isinstance(what, torch.Tensor):
        return [what]
    if isinstance(what, torch.nn.Module):
        return [*what.parameters(), *what.buffers()]
    return list(what.values()) if isinstance(what, dict) else list(what)
