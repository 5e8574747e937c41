"""The guard of memory that sleeps: a torch function that would touch a sleeping tensor raises AsleepError.

A kernel that touches unmapped memory ends the CUDA context. So while a region sleeps, a TorchDispatchMode checks
torch's functions before they run. The mode sees every operator of its thread and of the backward passes that the thread
starts, and is not installed while nothing sleeps. It reads only addresses that Python already has, so it takes no lock
and makes no driver call.

The mode lies at the bottom of its thread's stack of modes, below those of the program: these come and go in the order
in which they were opened, whatever we do.
"""

import json
import threading
from bisect import bisect_right
from typing import Any, Optional

from . import _forks
from ._errors import GaplessError

# Operators that read a tensor's shape and not its bytes: they may run on a sleeping tensor.
_SHAPES = frozenset(
    {
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_empty",
        "new_empty_strided",
        "new_zeros",
        "new_ones",
        "new_full",
        "is_same_size",
        "is_pinned",
        "_has_same_storage_numel",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "sym_storage_offset",
        "set_",
        "set_data",
    }
)


class AsleepError(GaplessError):
    """The program used a tensor whose region sleeps. The message names the region."""


class _Ranges:
    """The sleeping addresses, sorted for bisection. Replaced and never changed, so a reader needs no lock."""

    def __init__(self, regions: list[tuple[str, list[tuple[int, int]]]]) -> None:
        found = sorted((start, start + size, name) for name, ranges in regions for start, size in ranges)
        self.starts = [start for start, _, _ in found]
        self.ends = [end for _, end, _ in found]
        self.names = [name for _, _, name in found]

    def region_at(self, address: int) -> Optional[str]:
        at = bisect_right(self.starts, address) - 1
        return self.names[at] if at >= 0 and address < self.ends[at] else None


_ranges = _Ranges([])
# Regions that fell asleep with a guard.
_guarded: set[str] = set()
# Counts calls of read(), so that a call can tell whether another one came in between.
_looks = 0
# Reentrant: a finalizer or a signal handler may run in the same thread while it holds the lock.
_lock = _forks.lock()
_of_thread = threading.local()
_Mode: Any = None


def read(library: Any) -> list[tuple[str, list[tuple[int, int]]]]:
    """The sleeping regions with their address ranges, as the library knows them."""
    import ctypes

    room = 1 << 14
    while True:
        text = ctypes.create_string_buffer(room)
        length = library.optional("gapless_asleep_json", text, room)
        if length < room:
            return [(name, [(start, size) for start, size in ranges]) for name, ranges in json.loads(text.raw[:length])]
        room = 2 * length


def changed(library: Any, *, fell_asleep: Optional[str] = None) -> None:
    """Updates the guard of this thread: the region `fell_asleep` is to be guarded, or a region has woken."""
    global _ranges, _looks
    if fell_asleep is None and not _guarded:
        return
    with _lock:
        if fell_asleep is not None:
            _guarded.add(fell_asleep)
        while True:
            _looks = mine = _looks + 1
            sleeping = read(library)
            _guarded.intersection_update([name for name, _ in sleeping])
            _ranges = _Ranges([(name, ranges) for name, ranges in sleeping if name in _guarded])
            # Another call by a finalizer or a signal handler has read newer ranges: read again.
            if mine == _looks:
                break
    _name_when_printed(bool(_guarded))
    watch_this_thread(bool(_guarded))


_printed: Any = None


def _name_when_printed(wanted: bool) -> None:
    """Prints a sleeping tensor without its bytes: torch disables all modes while it prints, also the guard."""
    global _printed
    import torch

    module: Any = torch._tensor_str
    if wanted and _printed is None:
        before = _printed = module._str

        def text(self: Any, *, tensor_contents: Any = None) -> Any:
            name = _ranges.region_at(self.data_ptr()) if self.is_cuda and tensor_contents is None else None
            if name is None:
                return before(self, tensor_contents=tensor_contents)
            return f"tensor(asleep in region {name!r}, size={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"

        module._str = text
    elif not wanted and _printed is not None:
        module._str, _printed = _printed, None


def watch_this_thread(wanted: bool) -> None:
    """Adds the guard to this thread or removes it. A second call with the same value has no effect."""
    mode = getattr(_of_thread, "mode", None)
    if wanted and mode is None:
        mode = _of_thread.mode = _mode_class()()
        _put_below(mode)
        if _of_thread.mode is not mode:
            # A signal handler woke the last region before the mode was on the stack.
            _take_away(mode)
    elif not wanted and mode is not None:
        _of_thread.mode = None
        _take_away(mode)


class guard_sleeping:
    """Watches the torch functions of this thread: `with gapless.guard_sleeping():`. A function that would touch a
    tensor of a sleeping region raises gapless.AsleepError.

    The thread that calls gapless.sleep() is guarded anyway, for as long as something sleeps. Other threads can open a
    guard of their own.
    """

    def __enter__(self) -> "guard_sleeping":
        self._had = getattr(_of_thread, "mode", None) is not None
        watch_this_thread(True)
        return self

    def __exit__(self, *_: Any) -> None:
        if not self._had:
            watch_this_thread(False)


def _others() -> list[Any]:
    """Takes all modes off this thread's stack, the newest first."""
    from torch.utils import _python_dispatch as dispatch

    return [dispatch._pop_mode() for _ in range(dispatch._len_torch_dispatch_stack())]


def _put_below(mode: Any) -> None:
    """Opens a mode below all that are open."""
    from torch.utils import _python_dispatch as dispatch

    others = _others()
    try:
        mode.__enter__()
    finally:
        for other in reversed(others):
            dispatch._push_mode(other)


def _take_away(mode: Any) -> None:
    """Closes a mode, wherever it lies in the stack."""
    from torch.utils import _python_dispatch as dispatch

    others = _others()
    here = [other for other in others if other is not mode]
    try:
        if len(here) < len(others):
            dispatch._push_mode(mode)
            mode.__exit__(None, None, None)
    finally:
        for other in reversed(here):
            dispatch._push_mode(other)


def _mode_class() -> Any:
    """Makes the class at its first use, because it derives from a class of torch."""
    global _Mode
    if _Mode is not None:
        return _Mode
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    tensor_type = torch.Tensor

    def sleeping_in(values: Any, ranges: _Ranges) -> Optional[str]:
        for value in values:
            if isinstance(value, tensor_type):
                if not value.is_cuda:
                    continue
                try:
                    address = value.data_ptr()
                except RuntimeError:
                    # A tensor without memory, such as those that torch makes while it traces a program.
                    continue
                found = ranges.region_at(address)
            elif isinstance(value, (list, tuple)):
                found = sleeping_in(value, ranges)
            else:
                continue
            if found is not None:
                return found
        return None

    def look(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ranges = _ranges
        if ranges.starts:
            name = sleeping_in(args, ranges)
            if name is None and kwargs:
                name = sleeping_in(kwargs.values(), ranges)
            if name is not None and not _looks_only(func):
                raise AsleepError(
                    f"{func} was called with a tensor of region {name!r}, which sleeps: call gapless.wake({name!r}) first "
                    f"(gapless.kept_bytes(tensor) reads its bytes while it sleeps)"
                )
        return func(*args, **kwargs)

    yes = classmethod(lambda cls: True)
    members = {
        "__torch_dispatch__": look,
        # Below a mode of any other kind, torch.compile would run everything eagerly.
        "is_infra_mode": yes,
        "ignore_compile_internals": yes,
        "supports_higher_order_operators": True,
    }
    _Mode = type("SleepGuard", (TorchDispatchMode,), members)
    return _Mode


def _looks_only(func: Any) -> bool:
    """True if an operator needs no bytes of its tensors: it makes a view, or reads shapes."""
    packet = getattr(func, "overloadpacket", func)
    return bool(getattr(func, "is_view", False)) or getattr(packet, "__name__", "") in _SHAPES
