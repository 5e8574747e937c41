"""Memory of the pool as addresses, for Python libraries other than torch. include/gapless.h describes the functions.

torch is not needed: the library starts with the options of the environment, unless gapless.enable() started it before.
"""

import ctypes
from typing import Callable, NamedTuple, Optional

from . import _session
from ._errors import GaplessError
from ._library import Library

# CUDA's legacy default stream. Memory that is freed on it waits for all streams that wait for the default stream.
LEGACY_STREAM = 1

_OUT_OF_MEMORY = 1


class Figures(NamedTuple):
    """gapless_mem_stats_t."""

    allocated: int
    allocated_peak: int
    reserved: int
    reserved_peak: int
    requested: int
    allocations: int
    allocations_total: int
    failures: int
    limit: int
    device_free: int
    device_total: int


def allocate(size: int, device: int, stream: int) -> int:
    """The address of `size` bytes for work on `stream`; 0 if `size` is 0. Raises MemoryError if there is no memory."""
    library = _started()
    address: Optional[int] = library.optional("gapless_mem_alloc", size, device, stream)
    if address is None and size:
        raise _error(library)
    return address or 0


def free(address: int, stream: Optional[int] = None) -> None:
    """Gives memory back; with a stream, once the work that is queued there now is done."""
    library = _started()
    code = library.optional("gapless_mem_free", address) if stream is None else library.optional("gapless_mem_free_on", address, stream)
    if code:
        raise _error(library)


def freer(address: int, stream: Optional[int] = None) -> Callable[[], None]:
    """free() for a finalizer: it needs no module of Python's, which may be gone by then, and raises nothing."""
    call = _started().optional
    if stream is None:
        return lambda: call("gapless_mem_free", address)
    return lambda: call("gapless_mem_free_on", address, stream)


def figures(device: int) -> Figures:
    """The counts of a device. A device that was not used before is made ready first."""
    library = _started()
    library.reserve(device, 0)
    numbers = (ctypes.c_uint64 * len(Figures._fields))()
    if library.optional("gapless_mem_stats", device, numbers, ctypes.sizeof(numbers)):
        raise _error(library)
    return Figures(*numbers)


def _started() -> Library:
    # Takes no lock if the library has started, because finalizers call this at any point.
    return _session._started or _session.start_alone()


def _error(library: Library) -> Exception:
    message = library.last_error()
    return MemoryError(message) if library.optional("gapless_mem_last_code") == _OUT_OF_MEMORY else GaplessError(message)
