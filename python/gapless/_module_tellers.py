"""Marks that tell the recorders of memory which module a thread runs.

torch 2.10 and later   the metadata of the thread, which the allocator notes with each allocation
torch 2.8 and 2.9      annotations: a range in the recording's time
Gapless                a number in a cell of the thread, which the flight recorder reads with each request

Each one costs next to nothing while nothing is recorded.
"""

import ctypes
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from ._library import Library
    from ._modules import Place, _State

    Teller = Callable[["_State", Optional["Place"]], None]

# The flight recorder has 16 bits for a module.
_MOST_NUMBERS = (1 << 16) - 1

_library: Optional["Library"] = None
_numbers: dict[str, int] = {}


def record_with(library: "Library") -> bool:
    """Tells the flight recorder of modules from now on. False if this library has no cell for them."""
    global _library
    if not library.has("gapless_module_cell"):
        return False
    _library = library
    return True


def library() -> Optional["Library"]:
    return _library


def teller(torch: Any) -> "Teller":
    """The function that marks this thread with a place, for all recorders that there are."""
    native = _metadata(torch) or _annotations(torch)

    def tell(state: "_State", place: Optional["Place"]) -> None:
        if native is not None:
            native(state, place)
        if _library is not None:
            if state.slot is None:
                state.slot = ctypes.c_uint32.from_address(_library.optional("gapless_module_cell"))
            state.slot.value = 0 if place is None else place.number or number(place)

    return tell


def number(place: "Place") -> int:
    """The flight recorder's number for a place. After the largest number that it can tell apart, parents stand for
    their children."""
    assert _library is not None
    path = place.path
    while (known := _numbers.get(path)) is None:
        if len(_numbers) < _MOST_NUMBERS:
            known = _numbers[path] = len(_numbers) + 1
            note = place.note if path == place.path else f"module: {path}"
            _library.optional("gapless_module_name", known, note.encode(errors="replace"))
            break
        path = path.rpartition(".")[0]
        if not path:
            known = 0
            break
    place.number = known
    return known


def _metadata(torch: Any) -> "Optional[Teller]":
    put = getattr(torch._C, "_cuda_setMemoryMetadata", None)
    get = getattr(torch._C, "_cuda_getMemoryMetadata", None)
    if put is None or get is None:
        return None

    def tell(state: "_State", place: Optional["Place"]) -> None:
        if place is None:
            put(state.entered)
            state.native = None
            return
        if state.native is None:
            # The program's own metadata, which is put back after the model.
            state.entered, state.native = get(), True
        put(place.note)

    return tell


def _annotations(torch: Any) -> "Optional[Teller]":
    enter = getattr(torch._C._autograd, "_record_function_with_args_enter", None)
    leave = getattr(torch._C._autograd, "_record_function_with_args_exit", None)
    profiled = getattr(torch._C._autograd, "_profiler_enabled", None)
    if enter is None or leave is None or profiled is None or not hasattr(torch._C, "_cuda_record_memory_history"):
        return None

    def tell(state: "_State", place: Optional["Place"]) -> None:
        if state.native is not None:
            leave(state.native)
            state.native = None
        # A profiler needs ranges that are nested, and those of a backward pass are not.
        if place is not None and not profiled():
            state.native = enter(place.note)

    return tell
