"""Arguments of calls and operators: their tensors and constants, flat, and how each tensor lies in its storage.

`describe` gives what two calls must have in common so that the same operators run in both. It refuses arguments that it
cannot compare.
"""

from typing import Any, Callable, Optional

import torch

_CONSTANTS = (int, float, bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Ref:
    """A tensor in a template: which value it lies in, and how."""

    __slots__ = ("dtype", "offset", "size", "stride", "value")

    def __init__(self, value: int, tensor: Any) -> None:
        self.value = value
        self.size, self.stride, self.offset, self.dtype = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype


class Mystery(Exception):
    """An argument that cannot be compared or had again."""


def is_plain(tensor: Any) -> bool:
    """Bytes in a storage that can be read as they are."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg() and not tensor.is_quantized


def tensors(tree: Any, found: Optional[list[Any]] = None) -> list[Any]:
    """All tensors in nested lists, tuples and dicts, in order."""
    found = [] if found is None else found
    if isinstance(tree, torch.Tensor):
        found.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            tensors(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            tensors(item, found)
    return found


def describe(tree: Any) -> Any:
    """A value that is equal for arguments with which a function runs the same operators. Mystery if that is not
    known."""
    if isinstance(tree, torch.Tensor):
        if not is_plain(tree):
            raise Mystery
        return (tree.dtype, tree.size(), tree.stride(), tree.storage_offset(), tree.device, tree.requires_grad)
    if type(tree) in (list, tuple, torch.Size):
        return (type(tree).__name__, *(describe(item) for item in tree))
    if type(tree) is dict:
        return tuple((name, describe(item)) for name, item in tree.items())
    if isinstance(tree, float):
        return ("float", tree.hex())
    if type(tree) in _CONSTANTS:
        return (type(tree), tree)
    if tree is Ellipsis:
        return ("...",)
    if type(tree) is slice:
        return ("slice", describe(tree.start), describe(tree.stop), describe(tree.step))
    raise Mystery


def agrees(tree: Any, described: Any) -> bool:
    """describe(tree) == described, without building it."""
    kind = type(tree)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if type(described) is not tuple or len(described) != 6 or tree.dtype is not described[0] or tree.size() != described[1]:
            return False
        if tree.layout is not torch.strided or tree.stride() != described[2] or tree.storage_offset() != described[3]:
            return False
        return bool(tree.requires_grad == described[5] and tree.device == described[4] and not tree.is_conj() and not tree.is_neg())
    if kind is tuple or kind is list:
        return len(described) == len(tree) + 1 and described[0] == kind.__name__ and all(map(agrees, tree, described[1:]))
    try:
        return bool(describe(tree) == described)
    except Mystery:
        return False


def template(tree: Any, value_of: Callable[[Any], int]) -> Any:
    """The same arguments with a Ref for each tensor. Mystery if an argument cannot be had again."""
    if isinstance(tree, torch.Tensor):
        if not is_plain(tree):
            raise Mystery
        return Ref(value_of(tree), tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(template(item, value_of) for item in tree) if type(tree) in (list, tuple) else tree
    if type(tree) is dict:
        return {name: template(item, value_of) for name, item in tree.items()}
    if isinstance(tree, _CONSTANTS):
        return tree
    raise Mystery


def fill(tree: Any, find: Callable[[Ref], Any]) -> Any:
    """The opposite of template."""
    if type(tree) is Ref:
        return find(tree)
    if type(tree) is list or type(tree) is tuple:
        return type(tree)(fill(item, find) for item in tree)
    if type(tree) is dict:
        return {name: fill(item, find) for name, item in tree.items()}
    return tree


def refs(tree: Any, found: Optional[list[Ref]] = None) -> list[Ref]:
    """All Refs of a template."""
    found = [] if found is None else found
    if type(tree) is Ref:
        found.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            refs(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            refs(item, found)
    return found


def over(base: Any, ref: Any) -> Any:
    """The tensor that `ref` describes, over the storage of `base`."""
    if base.dtype is ref.dtype:
        if base.size() == ref.size and base.stride() == ref.stride and base.storage_offset() == ref.offset:
            return base
        return base.as_strided(ref.size, ref.stride, ref.offset)
    return torch.empty(0, dtype=ref.dtype, device=base.device).set_(base.untyped_storage(), ref.offset, ref.size, ref.stride)


def surroundings(kind: str) -> tuple[Any, ...]:
    """The other settings that decide which operators a call runs."""
    return (
        torch.is_grad_enabled(),
        torch.is_autocast_enabled(kind),
        torch.get_autocast_dtype(kind),
        torch.are_deterministic_algorithms_enabled(),
    )
