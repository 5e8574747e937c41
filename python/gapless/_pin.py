"""Pinned host memory for tensors, from the exact host pool: sizes are rounded to 4 KiB, where torch rounds to powers of
two."""

import weakref
from collections.abc import Mapping
from typing import Any

from ._errors import GaplessError


def pin_memory(tensor: Any, device: Any = None) -> Any:
    """Copies a CPU tensor to pinned memory, for copies to a GPU that run beside kernels (non_blocking=True). A tensor
    that is already pinned is returned as it is.

    The memory comes from Gapless's host pool. It returns to the pool when the last tensor that uses it is gone and the
    work queued by then is done. gapless.trim() gives free memory of the pool back to the system.
    """
    from . import _memory, _torch

    torch = _torch.import_torch()
    if not isinstance(tensor, torch.Tensor):
        raise GaplessError(f"a {type(tensor).__name__} cannot be pinned: pass a tensor, or use gapless.pin_batch() for what contains tensors")
    if tensor.device.type != "cpu" or tensor.layout != torch.strided:
        raise GaplessError(f"a tensor on {tensor.device} with the layout {tensor.layout} cannot be pinned: only plain CPU tensors can")
    library = _memory._started()
    torch.cuda.init()
    index = int(torch.cuda._utils._get_device_index(device, optional=True))
    if tensor.numel() == 0 or tensor.is_pinned():
        return tensor
    library.reserve(index, 0)
    library.optional("gapless_pinned_look")
    flat = pinned_bytes(torch, library, index, tensor.numel() * tensor.element_size()).view(tensor.dtype)
    is_dense = tensor.is_non_overlapping_and_dense() if hasattr(tensor, "is_non_overlapping_and_dense") else tensor.is_contiguous()
    stride = tensor.stride() if is_dense else torch.empty(tensor.shape, device="meta").stride()
    pinned = flat.as_strided(tensor.shape, stride)
    pinned.copy_(tensor.detach())
    return pinned


def pinned_bytes(torch: Any, library: Any, index: int, nbytes: int) -> Any:
    """Pinned memory as a tensor of bytes. Raises MemoryError if the host has no more."""
    address = library.optional("gapless_host_alloc", index, nbytes, 0)
    if not address:
        raise MemoryError(library.last_error())
    # A tensor keeps its buffer alive, and a buffer of a type of its own can have a finalizer.
    import ctypes

    kind: Any = type("Pinned", (ctypes.c_uint8 * nbytes,), {})
    buffer = kind.from_address(address)
    end = weakref.finalize(buffer, library.optional, "gapless_pinned_free", index, address)
    # At exit the driver may be gone.
    end.atexit = False
    return torch.frombuffer(buffer, dtype=torch.uint8)


def pin_batch(batch: Any, device: Any = None) -> Any:
    """Applies pin_memory() to what a DataLoader yields: tensors in lists, tuples, dicts and named tuples. If an object
    has a method pin_memory(), Gapless calls it. Everything else stays as it is.

        for batch in DataLoader(dataset, num_workers=8):
            batch = gapless.pin_batch(batch)
    """
    from . import _torch

    torch = _torch.import_torch()
    if isinstance(batch, torch.Tensor):
        return pin_memory(batch, device)
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, Mapping):
        pinned = {key: pin_batch(value, device) for key, value in batch.items()}
        return pinned if type(batch) is dict else type(batch)(pinned)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(pin_batch(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(pin_batch(value, device) for value in batch)
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    return batch
