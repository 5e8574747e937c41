"""The way into torch: its pluggable allocator, with every hook that it knows.

torch takes another allocator only before the current one was used, and only once; this file turns its refusals into
errors that say what to do. All hooks are set before the change, because CUDA may start right after it.
"""

from typing import Any, Optional

from ._errors import GaplessError
from ._library import Library

# torch's setter, our function. If a release of torch lacks one of the setters, the others are still set.
_HOOKS = (
    ("set_init_fn", "gapless_init"),
    ("set_reset_fn", "gapless_reset"),
    ("set_memory_fraction_fn", "gapless_memory_fraction"),
    ("set_base_alloc_fn", "gapless_base_alloc"),
    ("set_record_stream_fn", "gapless_record_stream"),
    ("set_begin_allocate_to_pool", "gapless_begin_pool"),
    ("set_end_allocate_to_pool_fn", "gapless_end_pool"),
    ("set_release_pool", "gapless_release_pool"),
)
# Without these, memory could be handed out again while a stream or a graph still uses it.
_NEEDED = ("set_init_fn", "set_record_stream_fn", "set_begin_allocate_to_pool", "set_end_allocate_to_pool_fn", "set_release_pool")

_STARTED = (
    "CUDA has already started in this process, and torch does not change its allocator after that: call gapless.enable() right after "
    "`import torch`, before the first tensor on the GPU, or run the program with `gapless run -- python ...`"
)
_FORKED = 'this process was forked from one that had started CUDA, and cannot use the GPU at all: start it with the multiprocessing method "spawn"'
_OTHER = (
    "torch already has another allocator, by torch.cuda.memory.change_current_allocator (RMM does that too), and takes only one: call "
    "gapless.enable() first, or leave the other out"
)


def import_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise GaplessError(f"torch cannot be imported ({error}): install it first, gapless serves its memory") from error
    return torch


def is_rocm(torch: Any) -> bool:
    """True if this torch is for AMD's cards."""
    return getattr(torch.version, "hip", None) is not None


def why_not(torch: Any) -> Optional[str]:
    """Why this torch has no use for an allocator, or None. Mistakes of the caller are raised."""
    if getattr(torch.version, "cuda", None) is None and not is_rocm(torch):
        return f"torch {torch.__version__} was built without CUDA"
    if torch.cuda._is_in_bad_fork():
        raise GaplessError(_FORKED)
    if torch.cuda.is_initialized():
        raise GaplessError(_STARTED)
    kind = getattr(torch._C, "_CUDAPluggableAllocator", None)
    missing = [setter for setter in _NEEDED if not hasattr(kind, setter)]
    if missing:
        return f"torch {torch.__version__} lacks {', '.join(missing)}, without which an allocator is not safe"
    return None


def plug(torch: Any, library: Library) -> Any:
    """Makes the library torch's allocator. Returns the object that must live as long as the process."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(library.file, "gapless_alloc", "gapless_free")
    inner = allocator.allocator()
    for setter, function in _HOOKS:
        if hasattr(inner, setter):
            getattr(inner, setter)(library.address(function))
    try:
        torch.cuda.memory.change_current_allocator(allocator)
    except RuntimeError as error:
        raise GaplessError(_OTHER) from error
    return allocator
