"""CuPy's arrays from the pool of Gapless:

    import cupy
    import gapless.cupy

    cupy.cuda.set_allocator(gapless.cupy.allocator)

Memory belongs to CuPy's current stream at the time of the allocation, and is free when the last array on it dies. As
with CuPy's own pool, a program that uses an array on another stream keeps the array until that work is done, or calls
record_stream. torch is not needed.
"""

from typing import Any, Callable

import cupy

from . import _memory
from ._errors import GaplessError
from ._session import start_alone

__all__ = ["OutOfMemoryError", "allocator", "record_stream"]


class OutOfMemoryError(cupy.cuda.memory.OutOfMemoryError):  # type: ignore[misc]
    """CuPy's own error, with what Gapless knows about the failure."""

    def __init__(self, size: int, message: str) -> None:
        super().__init__(size, 0)
        self._asked = size
        self.args = (message,)

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> Any:
        return type(self), (self._asked, self.args[0])


class _Block:
    """The owner of an array's memory: gives it back when it dies."""

    __slots__ = ("_free",)

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free

    def __del__(self) -> None:
        self._free()


def allocator(size: int) -> Any:
    """For cupy.cuda.set_allocator: `size` bytes on CuPy's current device, for its current stream."""
    device, stream = _place()
    try:
        address = _memory.allocate(size, device, stream)
    except MemoryError as error:
        raise OutOfMemoryError(size, str(error)) from None
    block = _Block(_memory.freer(address)) if address else None
    return cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(address, size, block, device), 0)


def record_stream(array: Any, stream: Any) -> None:
    """Says that work on `stream` uses the memory of `array`. After the last array on it dies, the memory is not used
    again before the work that is queued on `stream` then is done."""
    library = start_alone()
    if library.optional("gapless_mem_record_stream", array.data.mem.ptr, stream.ptr):
        raise GaplessError(library.last_error())


def _place() -> tuple[int, int]:
    """CuPy's current device and stream."""
    return cupy.cuda.runtime.getDevice(), cupy.cuda.get_current_stream().ptr
