"""Large tensors of the host without their bytes.

A model is made on the host and moved to the card, where nothing is stored. Its floats are never read, so filling and
converting them would only cost time and memory. Tensors beyond a size are allocated and never written: the kernel gives
the process no pages for them. A hollow storage is marked, and every result that is computed from it is hollow too.
"""

import math
from typing import Any, Callable, Optional

import torch
from torch import Tensor

# Floats of at least _LARGE elements are not filled or converted; tensors of _HUGE elements are made hollow.
_LARGE, _HUGE = 1 << 16, 1 << 26
_MARK = "gapless_hollow"

_MADE = {"zeros", "ones", "full", "rand", "randn", "empty", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "empty_like"}
_MADE |= {"new_zeros", "new_ones", "new_full", "new_empty", "normal", "eye"}
_KEEP = {"requires_grad_", "set_", "resize_", "detach_", "share_memory_", "__get__", "__set__", "_make_subclass", "__deepcopy__", "__reduce_ex__"}
_READ = {"item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "equal", "allclose", "is_pinned", "data_ptr", "save"}


def in_place(name: str) -> bool:
    """True if a function of this name changes its first argument."""
    if name.endswith("__"):
        return name == "__setitem__" or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
    return name.endswith("_")


def is_hollow(tensor: Tensor) -> bool:
    """True if a tensor of the host has contents that were never made."""
    try:
        return bool(getattr(tensor.untyped_storage(), _MARK, False))
    except (RuntimeError, NotImplementedError):
        # Sparse tensors and those of subclasses have no storage.
        return False


def answer(function: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: "list[Tensor]") -> "Optional[tuple[Any]]":
    """The result of a call in a tuple, without its bytes; None if the call has to run."""
    moved = _moved(name, args, kwargs)
    if moved is not None:
        return (moved,)
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return None
    if name in _MADE and _size(args, kwargs) >= _HUGE:
        return _by_shape(function, args, kwargs)
    if name in _KEEP or name in _READ or not any(is_hollow(tensor) for tensor in tensors):
        return None
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return None
    if name == "pin_memory" or (in_place(name) and isinstance(args[0], Tensor) and is_hollow(args[0])):
        return (None if name == "__setitem__" else args[0],)
    return _by_shape(function, args, kwargs)


def _size(args: Any, kwargs: Any) -> int:
    """Elements that a call makes, at most."""
    words = [*args, kwargs.get("size")]
    if words and isinstance(words[0], Tensor):
        source, words = words[0], words[1:]
        sides = _whole(words)
        return max(int(source.numel()), math.prod(sides) if sides else 0)
    return math.prod(_whole(words) or [0])


def _whole(words: Any) -> "list[int]":
    return [side for word in words for side in (_whole(word) if isinstance(word, (tuple, list)) else [word]) if type(side) is int and side > 0]


def _by_shape(function: Callable[..., Any], args: Any, kwargs: Any) -> "Optional[tuple[Any]]":
    """Runs a call on tensors that have only shapes, and allocates the result."""
    made: dict[int, Tensor] = {}

    def shape(word: Any) -> Any:
        if isinstance(word, Tensor):
            made[id(word)] = torch.empty_strided(word.shape, word.stride(), dtype=word.dtype, device="meta")
            return made[id(word)]
        if isinstance(word, (tuple, list)) and type(word) in (tuple, list):
            return type(word)(shape(part) for part in word)
        return word

    words = {key: shape(word) for key, word in kwargs.items() if key not in ("generator", "pin_memory")}
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        return None
    given = [shape(word) for word in args]
    if "device" in words or not made:
        words["device"] = "meta"
    try:
        with torch.no_grad():
            out = function(*given, **words)
    except Exception:
        return None
    if not isinstance(out, Tensor) or out.device.type != "meta" or not out.is_floating_point():
        return None
    if any(out.untyped_storage()._cdata == part.untyped_storage()._cdata for part in made.values()):
        # A view costs nothing and shares the mark, so the call runs.
        return None
    found = torch.empty_strided(out.shape, out.stride(), dtype=out.dtype)
    setattr(found.untyped_storage(), _MARK, True)
    return (found.requires_grad_(bool(kwargs.get("requires_grad", False))),)


def _moved(name: str, args: Any, kwargs: Any) -> Any:
    """The result of a call that only fills, converts or moves a large tensor of the host; None for every other."""
    # Initialisers of torch.nn.init come with keywords.
    first = args[0] if args else kwargs.get("tensor")
    if not isinstance(first, Tensor) or first.device.type != "cpu" or first.numel() < _LARGE or not first.is_floating_point():
        return None
    if in_place(name) and name not in _KEEP and (name in ("normal_", "uniform_") or isinstance(first, torch.nn.Parameter)):
        return first
    if name == "to" and not (first.requires_grad and torch.is_grad_enabled()):
        device, dtype, layout = _moved_to(args[1:], kwargs)
        if device is not None and device.type == "cuda":
            return torch.empty_like(first, dtype=dtype or first.dtype, device=device, memory_format=layout or torch.preserve_format)
    return None


def _moved_to(words: Any, kwargs: Any) -> "tuple[Any, Any, Any]":
    """The device, dtype and layout that `Tensor.to` was asked for; None for each if another tensor names them."""
    if any(isinstance(word, Tensor) for word in words) or any(isinstance(word, Tensor) for word in kwargs.values()):
        return None, None, None
    device, dtype, _, layout = torch._C._nn._parse_to(*words, **{key: word for key, word in kwargs.items() if key != "copy"})
    return device, dtype, layout
