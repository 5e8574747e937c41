"""The host's memory without preloading: numpy's arrays and torch's CPU tensors on Gapless.

    import gapless.host
    gapless.host.enable()

`gapless run --host` serves every allocation of a process, and is the better way. This is for programs that cannot be
started that way: notebooks, servers that embed Python, workers that another program starts. Importing this module does
nothing.
"""

import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Any, Optional

from ._errors import GaplessError

if TYPE_CHECKING:
    import ctypes

__all__ = ["disable", "enable", "enabled", "preloaded", "stats", "trim"]

FILE_NAME = "libgapless_malloc.so"
# The order in which the library gives its figures.
_FIGURES = (
    "large_live",
    "large_peak",
    "kept",
    "small",
    "allocations",
    "frees",
    "handed_out",
    "reused",
    "moved",
    "copied",
    "given_back",
    "huge_pages",
    "limit",
    "budget_held",
    "refused",
    "small_live",
    "lists_kept",
    "lists_most",
    "threads",
    "pinned",
    "pinned_kept",
    "pinned_reused",
)

_library: Optional["ctypes.CDLL"] = None
_hooked: set[str] = set()


def enable(*, numpy: Optional[bool] = None, torch: Optional[bool] = None) -> tuple[str, ...]:
    """Puts Gapless below numpy's arrays and torch's CPU tensors of 1 KiB or more, in all threads. Returns the names of
    the libraries that it serves.

    numpy, torch: whether to serve each. By default, Gapless serves those that were imported before; it imports a
    library that you set to True. Existing arrays and tensors do not change. If libgapless_malloc.so is preloaded, the
    call has no effect.
    """
    global _library
    if preloaded():
        return ("everything",)
    if not sys.platform.startswith("linux"):
        raise GaplessError("gapless.host works on Linux only")
    wanted = [name for name, chosen in (("numpy", numpy), ("torch", torch)) if (chosen if chosen is not None else name in sys.modules)]
    if not wanted:
        raise GaplessError("gapless.host.enable() found neither numpy nor torch: import them before, or pass numpy=True or torch=True")
    for name in wanted:
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            raise GaplessError(f"gapless.host.enable({name}=True): {name} is not installed")
    if _library is None:
        _library = _load()
    for name in wanted:
        if name not in _hooked:
            (_hook_numpy if name == "numpy" else _hook_torch)(_library)
            _hooked.add(name)
    _library.gapless_host_hooks(True)
    return tuple(sorted(_hooked))


def disable() -> None:
    """Gives new arrays and tensors to the allocators from before. Existing ones do not change."""
    if _library is not None:
        _library.gapless_host_hooks(False)
        _hooked.clear()


def enabled() -> bool:
    """Whether Gapless serves memory of this process: all of it, or that of numpy or torch."""
    return bool(_hooked) or preloaded()


def preloaded() -> bool:
    """Whether libgapless_malloc.so is preloaded, as `gapless run --host` does."""
    import ctypes

    try:
        return hasattr(ctypes.CDLL(None), "gapless_host_step")
    except (OSError, TypeError):
        return False


def stats() -> dict[str, int]:
    """What Gapless holds of the host's memory, in bytes and counts; all 0 if it serves none."""
    import ctypes

    library = ctypes.CDLL(None) if preloaded() else _library
    figures = (ctypes.c_uint64 * len(_FIGURES))()
    if library is not None:
        library.gapless_host_stats(figures, ctypes.c_size_t(len(_FIGURES)))
    return dict(zip(_FIGURES, map(int, figures)))


def trim() -> int:
    """Gives memory that is kept for reuse back to the system. Returns the bytes of large buffers among it."""
    import ctypes

    library = ctypes.CDLL(None) if preloaded() else _library
    if library is None:
        return 0
    before = stats()["kept"]
    library.malloc_trim(ctypes.c_size_t(0))
    return before - stats()["kept"]


def _load() -> "ctypes.CDLL":
    import ctypes

    named = os.environ.get("GAPLESS_HOST_LIBRARY")
    found = named or os.path.join(os.path.dirname(os.path.abspath(__file__)), FILE_NAME)
    if not os.path.isfile(found):
        if named:
            raise GaplessError(f"GAPLESS_HOST_LIBRARY is {named}, and there is no such file: unset it to use the one that was installed")
        raise GaplessError(f"{found} is missing: this is a source tree or a damaged installation; run `pip install .` in the repository")
    try:
        # RTLD_LOCAL: it exports the names of the C library, which must not reach other libraries.
        library = ctypes.CDLL(os.path.abspath(found), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise GaplessError(f"the library cannot be loaded: {error}") from None
    if not hasattr(library, "gapless_host_hook_torch"):
        raise GaplessError(f"{found} has no hooks: it is not of this version of gapless")
    library.gapless_host_hooks.argtypes = [ctypes.c_bool]
    library.gapless_host_hooks.restype = None
    return library


def _hook_torch(library: "ctypes.CDLL") -> None:
    import torch  # noqa: F401  # its libc10.so is changed

    if library.gapless_host_hook_torch() != 0:
        raise GaplessError("this build of torch cannot be served: its libc10.so does not call posix_memalign and free; use `gapless run --host`")


# The place of PyDataMem_GetHandler in numpy's table of functions, since 1.22.
_GET_HANDLER = 305


def _hook_numpy(library: "ctypes.CDLL") -> None:
    import ctypes

    import numpy

    class Handler(ctypes.Structure):
        # PyDataMem_Handler of numpy's headers, version 1.
        _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", ctypes.c_void_p * 5))

    what = f"numpy {numpy.__version__} cannot be served"
    if tuple(int(part) for part in numpy.__version__.split(".")[:2]) < (1, 22):
        raise GaplessError(f"{what}: it has no handler for its memory; numpy 1.22 is the first that has")
    core: Any = importlib.import_module("numpy._core.multiarray" if importlib.util.find_spec("numpy._core") else "numpy.core.multiarray")
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = ctypes.cast(pointer(core._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    current = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER] or 0)()
    address = pointer(current, b"mem_handler")
    handler = Handler.from_address(address)
    if handler.name != b"default_allocator" or handler.version != 1:
        raise GaplessError(f"{what}: another handler is in place ({handler.name.decode(errors='replace')}); call gapless.host.enable() before it is set")
    if not _is_writable(address):
        raise GaplessError(f"{what}: its handler is read-only; use `gapless run --host`")
    if library.gapless_host_hook_numpy(ctypes.c_void_p(address + Handler.allocator.offset)) != 0:
        raise GaplessError(f"{what}: another copy of numpy is served already; use `gapless run --host`")


def _is_writable(address: int) -> bool:
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split(None, 1)[0].split("-"))
            if start <= address < end:
                return line.split()[1][1] == "w"
    return False
