"""Calls of torch: their nests of tensors, functions by what depends on their results, the place of a call."""

import os
import sys
from typing import Any, Callable, Optional

import torch
from torch import Tensor

READS = {"__bool__", "item", "tolist", "__int__", "__float__", "__index__", "__complex__", "is_nonzero", "equal", "allclose", "__contains__"}
QUIET = {"__repr__", "__str__", "__format__", "__reduce_ex__", "__deepcopy__"}
# Functions that answer yes or no.
TRUTHS = {"__bool__", "is_nonzero", "equal", "allclose", "__contains__"}
# Choices among unknown numbers, by which of their results are the places: all but `argmax` and the like may also return
# the chosen numbers.
PAIRS = {"topk", "sort", "max", "min", "median", "nanmedian", "kthvalue"}
CHOICES = {*PAIRS, "argmax", "argmin", "argsort", "multinomial", "bincount"}
# Choices begin at this share: the first and last words of a vocabulary end a text. Beams lay several vocabularies one
# after the other, and at this share a few of them never have a border, as two have in the middle.
_APART = (3 - 5**0.5) / 2
# Tests of unknown numbers, which are taken to be finite; with the answer.
FINITE = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
UNSET = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
FILLS = {"zero_", "fill_", "copy_", "random_", "uniform_", "normal_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"}
# Functions that change the shape of a tensor, or nothing that it holds.
SHAPES = {"unsqueeze_", "squeeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "resize_", "as_strided_", "detach_", "requires_grad_", "set_", "rename_"}
RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "poisson", "multinomial"}
RANDOM |= {"random_", "uniform_", "normal_", "bernoulli_", "dropout", "exponential_", "cauchy_", "log_normal_", "geometric_"}
MOVES = {"cpu", "to", "numpy"}
SIZED = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "repeat_interleave", "where", "__getitem__"}
# Functions that take sizes, bounds or counts as numbers: given as tensors, torch would read them from the card.
MAKERS = {"zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices"}
RESHAPERS = {"view", "reshape", "expand", "repeat", "tile", "split", "split_with_sizes", "chunk", "unfold", "unflatten", "narrow", "roll", "broadcast_to"}
RESHAPERS |= {"interpolate", "pad", "fold", "topk", "select", "one_hot", "new_zeros", "new_ones", "new_empty", "new_full", "adaptive_avg_pool2d", "as_strided"}
RESHAPERS |= {"adaptive_avg_pool1d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "upsample", "bincount", "diagonal", "tril", "triu"}
# Functions that read the card and are answered here, or read nothing but an error code.
MAY_READ = {*READS, *MOVES, *CHOICES, *SIZED, "copy_", "nms", "ctc_loss", "coalesce", "__array__", "segment_reduce", "cuda", "__reduce_ex__"}
MAY_READ |= {"gru", "lstm", "rnn_tanh", "rnn_relu", "istft", "matrix_exp", "_grouped_mm", "backward", "cholesky", "inverse"}
MAY_READ |= {"fake_quantize_per_channel_affine", "fake_quantize_per_tensor_affine"}


def tensors_in(words: Any) -> "list[Tensor]":
    """The tensors in arguments or results, which nest in tuples, lists and dicts alone."""
    found: list[Tensor] = []
    _collect((words,), found)
    return found


def _collect(words: Any, found: "list[Tensor]") -> None:
    """A leaf costs no call of its own, because each call of torch comes here."""
    for word in words:
        if isinstance(word, Tensor):
            found.append(word)
        elif isinstance(word, (tuple, list)):
            if not isinstance(word, torch.Size):
                _collect(word, found)
        elif isinstance(word, dict):
            _collect(word.values(), found)


def mapped(words: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest, with every leaf changed."""
    if type(words) in (tuple, list):
        return type(words)(mapped(word, change) for word in words)
    if isinstance(words, tuple) and not isinstance(words, torch.Size):
        # A named tuple, or a structure of torch's return types, which takes one sequence.
        parts = [mapped(word, change) for word in words]
        return type(words)(*parts) if hasattr(words, "_fields") else type(words)(parts)
    if type(words) is dict:
        return {key: mapped(word, change) for key, word in words.items()}
    return change(words)


def even_choice(name: str, args: Any, kwargs: Any, outputs: "list[Tensor]") -> Optional[Tensor]:
    """An even choice for the last result; None if the function chooses no places, as `max` of all."""
    source, last = args[0] if args else kwargs.get("input"), outputs[-1]
    if not isinstance(source, Tensor) or not last.is_cuda or last.dtype != torch.int64 or not last.numel():
        return None
    if name == "bincount":
        # The counts are even, and add up to the number of elements.
        return (torch.arange(last.numel(), device="cpu") < source.numel() % last.numel()).to(torch.int64) + source.numel() // last.numel()
    if name in PAIRS and len(outputs) < 2:
        return None
    # Positions of `dim`: the second word, after `k` the third; sorts and draws are along the last.
    dimension = kwargs.get("dim", next(iter(args[2 if name in ("topk", "kthvalue") else 1 :]), None))
    if name == "multinomial" or isinstance(dimension, bool) or not isinstance(dimension, int):
        dimension = None
    if dimension is None and name in ("argmax", "argmin"):
        choices = source.numel()
    else:
        choices = source.shape[-1 if dimension is None else dimension] if source.dim() else 1
    return ((torch.arange(last.numel(), device="cpu") + int(choices * _APART)) % max(choices, 1)).reshape(last.shape)


def size_hangs_on_values(name: str, args: Any, kwargs: Any) -> bool:
    """True if the size of the result depends on values of the arguments."""
    if name == "__getitem__":
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in parts)
    if name == "repeat_interleave":
        repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
        return isinstance(repeats, Tensor)
    return name != "where" or len(args) == 1


def size_of_everything(name: str, args: Any) -> int:
    """Bytes of the result if everything is chosen."""
    source = args[0]
    if name in ("nonzero", "argwhere", "where"):
        return int(source.numel() * 8 * max(source.dim(), 1))
    return int(source.numel() * source.element_size())


_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def caller() -> Any:
    """The frame that called torch, which may be torch's own."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return frame


def place() -> str:
    """The line of the program that asked: the nearest that is neither torch's nor this package's."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_PACKAGE, _TORCH, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"
