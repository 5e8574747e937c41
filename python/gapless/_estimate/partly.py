"""Tensors of which some elements are known. Functions that move elements move the known ones too, and a logic function
needs only the inputs that decide it.

    where(finished, scores, -1e9)   is known where nothing has finished
    any(x > -1e9)                   is known, since numbers that are not known are taken to be ordinary
"""

import math
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from .calls import tensors_in
from .known import Known

# Larger tensors would take more time than they are worth.
_MOST = 1 << 16
# No number of a model is as large: constants beyond it stand for infinity.
_ORDINARY = 1e6
# Functions that move elements, by how many of their first words have elements (the others are indices); 0 means all.
_MOVES = {"cat": 0, "concat": 0, "concatenate": 0, "stack": 0, "hstack": 0, "vstack": 0, "clone": 0, "contiguous": 0, "flip": 0, "roll": 0, "repeat": 0}
_MOVES |= {"reshape": 0, "flatten": 0, "gather": 1, "index_select": 1, "take_along_dim": 1, "__getitem__": 1, "detach": 0, "squeeze": 0, "unsqueeze": 0}
_ORDERS = {"gt": torch.gt, "ge": torch.ge, "lt": torch.lt, "le": torch.le, "eq": torch.eq, "ne": torch.ne}
_BOTH = {"and", "logical_and", "bitwise_and", "mul"}
_EITHER = {"or", "logical_or", "bitwise_or"}

Part = tuple[Tensor, Tensor]


def partly(known: Known, function: Callable[..., Any], name: str, args: Any, kwargs: Any, output: Any) -> Optional[Part]:
    """The elements of the result, and which of them are known; None if none are, or it is not worth the time."""
    if not isinstance(output, Tensor) or not output.is_cuda or output.numel() > _MOST or not args or any(isinstance(word, Tensor) for word in kwargs.values()):
        return None
    plain = name.strip("_") if name not in ("__getitem__",) else name
    try:
        found = _found(known, function, plain, args, kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    if found is None or found[1].shape != output.shape or found[0].shape != output.shape or not bool(found[1].any()):
        return None
    return found


def _found(known: Known, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Optional[Part]:
    if name in _MOVES:
        return _moved(known, function, _MOVES[name], args, kwargs)
    if name in ("where", "masked_fill") and len(args) == 3:
        condition, yes, no = args if name == "where" else (args[1], args[2], args[0])
        mask = known.value(condition) if isinstance(condition, Tensor) else None
        first, second = _part(known, yes), _part(known, no)
        if mask is None or first is None or second is None:
            return None
        return torch.where(mask, first[0], second[0]), torch.where(mask, first[1], second[1])
    if name in _ORDERS and len(args) == 2:
        return _ordered(known, _ORDERS[name], args)
    if name in _BOTH | _EITHER and len(args) == 2 and all(_is_truth(word) for word in args):
        return _joined(known, name in _EITHER, args)
    if name in ("any", "all") and _is_truth(args[0]):
        part = _part(known, args[0])
        if part is None:
            return None
        # One known element decides, or all of them are known.
        deciding = (part[0] if name == "any" else ~part[0]) & part[1]
        decided = function(deciding, *args[1:], **kwargs) if name == "any" else torch.any(deciding, *args[1:], **kwargs)
        everything = torch.all(part[1], *args[1:], **kwargs)
        return (decided if name == "any" else ~decided), decided | everything
    if name in ("invert", "logical_not", "bitwise_not") and _is_truth(args[0]):
        part = _part(known, args[0])
        return None if part is None else (~part[0], part[1])
    return None


def _moved(known: Known, function: Callable[..., Any], count: int, args: Any, kwargs: Any) -> Optional[Part]:
    given = args if count == 0 else args[:count]
    if not any(known.shadow(tensor) is not None for tensor in tensors_in(given) if tensor.is_cuda):
        return None
    rest = () if count == 0 else tuple(_index(known, word) for word in args[count:])
    if any(word is None for word in rest):
        return None
    values, flags = [], []
    for word in given:
        parts = [_part(known, part) for part in word] if isinstance(word, (tuple, list)) and word and isinstance(word[0], Tensor) else None
        if parts is not None:
            if any(part is None for part in parts):
                return None
            values.append([part[0] for part in parts if part is not None])
            flags.append([part[1] for part in parts if part is not None])
        elif isinstance(word, Tensor):
            one = _part(known, word)
            if one is None:
                return None
            values.append(one[0])
            flags.append(one[1])
        else:
            values.append(word)
            flags.append(word)
    return function(*values, *rest, **kwargs), function(*flags, *rest, **kwargs)


def _index(known: Known, word: Any) -> Any:
    """An index with its known values; None if one is not known, or is a mask, whose size would depend on it."""
    if isinstance(word, (tuple, list)):
        parts = [_index(known, part) for part in word]
        return None if any(part is None and own is not None for part, own in zip(parts, word)) else type(word)(parts)
    if isinstance(word, Tensor):
        return None if word.dtype in (torch.bool, torch.uint8) else known.value(word)
    return word


def _ordered(known: Known, order: Callable[..., Tensor], args: Any) -> Optional[Part]:
    """Comparisons with numbers that are as good as infinite: everything else lies on one side of them."""
    values = [known.value(word) if isinstance(word, Tensor) else torch.tensor(word, device="cpu") for word in args]
    if (values[0] is None) == (values[1] is None):
        return None
    there = 0 if values[0] is not None else 1
    limit, other = values[there], args[1 - there]
    if limit is None or not isinstance(other, Tensor) or not other.is_floating_point():
        return None
    limit = limit.to(torch.float64)
    ordinary = torch.zeros(other.shape, dtype=torch.float64, device="cpu")
    found = order(limit, ordinary) if there == 0 else order(ordinary, limit)
    return found, ((limit.abs() >= _ORDINARY) & ~limit.isnan()).expand(found.shape)


def _joined(known: Known, either: bool, args: Any) -> Optional[Part]:
    parts = [_part(known, word) for word in args]
    if parts[0] is None or parts[1] is None:
        return None
    (one, of_one), (two, of_two) = parts[0], parts[1]
    decides = (one & of_one) | (two & of_two) if either else (~one & of_one) | (~two & of_two)
    return (one | two if either else one & two), (of_one & of_two) | decides


def _is_truth(word: Any) -> bool:
    return isinstance(word, bool) or (isinstance(word, Tensor) and word.dtype == torch.bool)


def _part(known: Known, word: Any) -> Optional[Part]:
    """The elements of a tensor or a number, and which of them are known."""
    if isinstance(word, (bool, int, float)):
        finite = word if not isinstance(word, float) or not math.isnan(word) else 0.0
        return torch.tensor(finite, device="cpu"), torch.tensor(True, device="cpu")
    if not isinstance(word, Tensor) or word.numel() > _MOST:
        return None
    value = known.value(word)
    if value is not None:
        return value, torch.ones(word.shape, dtype=torch.bool, device="cpu")
    shadow = known.shadow(word) if word.is_cuda and not isinstance(word, torch.nn.Parameter) else None
    if shadow is None:
        return torch.zeros(word.shape, dtype=word.dtype, device="cpu"), torch.zeros(word.shape, dtype=torch.bool, device="cpu")
    holds = torch.ones(word.shape, dtype=torch.bool, device="cpu")
    for flags in shadow.flags(word):
        holds = holds & flags
    return shadow.view(word), holds
