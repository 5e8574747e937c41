"""torch's tracing of GPU memory (torch.cuda._sanitizer): the library tells of each allocation and free, and torch's
callbacks are called, as torch's own allocator does."""

import _thread
import ctypes
import sys
from typing import Any

from ._library import Library

_FREED, _ALLOCATED = 0, 1


def attach(library: Library) -> None:
    """Has the library call torch's callbacks from now on."""
    if library.has("gapless_on_trace"):
        library.optional("gapless_on_trace", ctypes.cast(_callback, ctypes.c_void_p))


def _tell(event: int, address: int) -> None:
    # If the module was not imported, it has no callbacks.
    trace: Any = sys.modules.get("torch.cuda._gpu_trace")
    if trace is None:
        return
    callbacks = trace.MemoryAllocationCallbacks if event == _ALLOCATED else trace.MemoryDeallocationCallbacks
    try:
        callbacks.fire_callbacks(address)
    except KeyboardInterrupt:
        # An exception cannot leave a callback of ctypes: the main thread gets it when it runs Python again.
        _thread.interrupt_main()
    except BaseException as error:
        print(f"gapless: a callback of torch.cuda._gpu_trace failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


# Lives as long as the module: the library keeps its address.
_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_uint64)(_tell)
