"""Memory of tensors on the host: where a file's bytes can be read into it directly, with no copy on the way.

A direct read needs an address and a place in the file that agree in their last bits. torch aligns addresses to 64
bytes, and tensors stand anywhere in a file, so large ones get a mapping of their own, in which they begin at the right
byte. The tensor's storage has the tensor's bytes and no others, and frees them with the tensor.
"""

import mmap
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# Tensors of at least so many bytes: of smaller ones a copy is cheap.
LARGE = 1 << 20


def empty(shape: "list[int]", dtype: "torch.dtype", device: "torch.device", tensor: "dict[str, Any]", begin: int) -> "torch.Tensor":
    """Memory for the bytes from `begin` of a tensor of a catalogue, in the type that the file has."""
    import torch

    length = dtype.itemsize
    for size in shape:
        length *= size
    shift = (tensor["at"] + begin) % mmap.PAGESIZE
    usual = device.type != "cpu" or tensor["packed"] or length < LARGE or shift % dtype.itemsize
    if usual or not sys.platform.startswith("linux"):
        return torch.empty(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, shift + length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # As bytes first: frombuffer does not know every type.
    return torch.frombuffer(memoryview(memory)[shift : shift + length], dtype=torch.uint8).view(dtype).view(shape)
