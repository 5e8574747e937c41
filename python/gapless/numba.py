"""Numba's device arrays from the pool of Gapless: a plug-in for its External Memory Management.

    NUMBA_CUDA_MEMORY_MANAGER=gapless.numba python program.py

or, before Numba uses the GPU:

    from numba import cuda
    import gapless.numba

    cuda.set_memory_manager(gapless.numba.GaplessMemoryManager)

Numba does not say on which stream it uses an array. So memory belongs to the default stream, and after it is freed it
is not used again before the work on all streams of cuda.stream() is done. torch is not needed.
"""

import ctypes
import weakref
from contextlib import AbstractContextManager
from typing import Any, Callable

from numba import cuda

from . import _memory
from ._errors import GaplessError

__all__ = ["GaplessMemoryManager"]

_DEFAULT_STREAM = 0


class GaplessMemoryManager(cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """Device memory from the pool. Host memory stays with Numba."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # For each address, the function that gives the memory back.
        self._live: dict[int, Callable[[], None]] = {}

    @property
    def interface_version(self) -> int:
        return 1

    def initialize(self) -> None:
        """The first request starts the library."""

    def memalloc(self, size: int) -> Any:
        address = _memory.allocate(size, self.context.device.id, _DEFAULT_STREAM)
        finalizer = None
        if address:
            self._live[address] = _memory.freer(address, _memory.LEGACY_STREAM)
            finalizer = _finalizer(self._live, address)
        return cuda.MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(address), size, finalizer=finalizer)

    def get_memory_info(self) -> Any:
        """The bytes that can still be allocated, and those that the device has."""
        now = _memory.figures(self.context.device.id)
        free = now.device_free + now.reserved - now.allocated
        if now.limit:
            free = min(free, max(0, now.limit - now.allocated))
        return cuda.MemoryInfo(free=free, total=now.device_total)

    def get_ipc_handle(self, memory: Any) -> Any:
        raise GaplessError(
            "memory of gapless has no CUDA IPC handle, because it is mapped from pages: copy the array to the host, "
            "or use Numba's own memory manager in the process that shares it"
        )

    def reset(self) -> None:
        """Frees all that Numba holds."""
        for address in list(self._live):
            _give_back(self._live, address)
        super().reset()

    def defer_cleanup(self) -> "AbstractContextManager[None]":
        """Host memory is kept until the end of the block. Device memory goes back to the pool at once, since that does
        not wait for the device."""
        return super().defer_cleanup()  # type: ignore[no-any-return]


def _finalizer(live: dict[int, Callable[[], None]], address: int) -> Callable[[], None]:
    # Not a method, because the pointer would then keep the manager alive.
    return lambda: _give_back(live, address)


def _give_back(live: dict[int, Callable[[], None]], address: int) -> None:
    free = live.pop(address, None)
    if free is not None:
        free()


# The name that NUMBA_CUDA_MEMORY_MANAGER=gapless.numba looks for.
_numba_memory_manager = GaplessMemoryManager
