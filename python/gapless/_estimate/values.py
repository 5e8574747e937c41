"""Values for control flow, on a card that stores none.

On the card every read gives zeros, so a program that looks at a mask or a length would go astray. This mode runs what
depends on known values alone (indices, masks, lengths, small inputs) on the CPU beside it, and answers `bool`, `item`,
`tolist` and the like from there. It works above the dispatcher, so what is allocated on the card does not change.
Parameters are never known, and so nothing that they touch is.

A read of what is not known is noted with its place. It gets the card's zero, of floats a number next to it: a program
may divide by it or take its logarithm. Numbers that are not known are taken to be finite, and a check that would end
the program is taken to pass. What chooses among unknown numbers (topk, argmax,
sort, multinomial) is assumed to choose evenly, as a balanced router does, and noted as well. Masks of unknown numbers
choose nothing, and are noted with what they could choose. The program's random numbers stay as they are: values here
are drawn from a state of their own.
"""

import ctypes
import os
import sys
import weakref
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import checks, hollow, stored

# Values are kept for tensors of at most this many elements.
_MOST_INTEGERS, _MOST_FLOATS = 1 << 22, 1 << 22
# Masks of at most this many elements choose too little to matter.
_FEW = 4096

_READS = {"__bool__", "item", "tolist", "__int__", "__float__", "__index__", "__complex__", "is_nonzero", "equal", "allclose", "__contains__"}
_QUIET = {"__repr__", "__str__", "__format__", "__reduce_ex__", "__deepcopy__"}
# What answers yes or no.
_TRUTHS = {"__bool__", "is_nonzero", "equal", "allclose", "__contains__"}
# A loop that ends by a value that is not known would never end: each time after so many reads the answer is yes.
_PATIENCE = 1000
# Choices among unknown numbers, by which of their results are the places: all but `argmax` and the like may also return
# the chosen numbers.
_PAIRS = {"topk", "sort", "max", "min", "median", "nanmedian", "kthvalue"}
_CHOICES = {*_PAIRS, "argmax", "argmin", "argsort", "multinomial", "bincount"}
# Tests of unknown numbers, which are taken to be finite; with the answer.
_FINITE = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}
# Up to so many elements their answers are kept, in one element.
_MOST_ALIKE = 1 << 26
_UNSET = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
_FILLS = {"zero_", "fill_", "copy_", "random_", "uniform_", "normal_", "bernoulli_"}
# What writes parts of a tensor: of whole numbers that were never set, the other parts are taken to be zeros.
_PARTS = {"scatter_", "index_copy_", "index_put_", "index_fill_", "__setitem__"}
_RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "poisson", "multinomial"}
_RANDOM |= {"random_", "uniform_", "normal_", "bernoulli_", "dropout", "exponential_", "cauchy_", "log_normal_", "geometric_"}
_MOVES = {"cpu", "to", "numpy"}
_SIZED = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere", "repeat_interleave", "where", "__getitem__"}
# What a float is that is not known: small enough to end a loop, and no zero to divide by.
_ALMOST_ZERO = 1e-12
# What takes sizes, bounds or counts as numbers: given as tensors, torch would read them from the card.
_MAKERS = {"zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm", "arange", "linspace", "logspace", "eye", "tril_indices", "triu_indices"}
_RESHAPERS = {"view", "reshape", "expand", "repeat", "tile", "split", "split_with_sizes", "chunk", "unfold", "unflatten", "narrow", "roll", "broadcast_to"}
_RESHAPERS |= {"interpolate", "pad", "fold", "topk", "select", "one_hot", "new_zeros", "new_ones", "new_empty", "new_full", "adaptive_avg_pool2d", "as_strided"}
_RESHAPERS |= {"adaptive_avg_pool1d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "upsample", "bincount", "diagonal", "tril", "triu"}
# What reads the card and is answered here, or reads nothing but whether it went well.
_MAY_READ = {*_READS, *_MOVES, *_CHOICES, *_SIZED, "copy_", "nms", "ctc_loss", "coalesce", "__array__", "segment_reduce", "cuda", "__reduce_ex__"}
_MAY_READ |= {"gru", "lstm", "rnn_tanh", "rnn_relu", "istft", "matrix_exp", "_grouped_mm", "backward", "cholesky", "inverse"}
_MAY_READ |= {"fake_quantize_per_channel_affine", "fake_quantize_per_tensor_affine"}


class Choice(NamedTuple):
    """A choice among unknown numbers. It is noted once a size or a branch hangs on it, and not where it is only counted
    for a figure of the program."""

    place: str
    name: str
    size: int


class Values(TorchFunctionMode):  # type: ignore[misc]
    """`reads` and `choices` say what was read or assumed: place to (function, times, bytes)."""

    def __init__(self) -> None:
        super().__init__()
        # Of each tensor whose value is known: the tensor, the value, and the choice that it was assumed from.
        self._known: dict[int, tuple[Any, Tensor, Optional[Choice]]] = {}
        # Whole numbers that were allocated and not written to yet.
        self._unset: dict[int, Any] = {}
        self._random = torch.Generator().manual_seed(0).get_state()
        self.reads: dict[str, tuple[str, int, int]] = {}
        self.choices: dict[str, tuple[str, int, int]] = {}
        # Where the size of a result was counted from known values: place to (function, times, bytes).
        self.sampled: dict[str, tuple[str, int, int]] = {}
        # Reads of what the card does not know, as the card counts them, and up to where they were looked at.
        self._blind = ctypes.c_ulong.in_dll(ctypes.CDLL("libgapless-card.so"), "card_blind_reads")
        self._seen = self._blind.value
        stored.keep(self._of_storage, self.learn, self._saw)

    # ---- what is known ----

    def value(self, tensor: Tensor) -> Optional[Tensor]:
        """The tensor's value on the CPU, where it is known."""
        if tensor.device.type == "cpu":
            return None if tensor.requires_grad or tensor.numel() > _MOST_INTEGERS or hollow.is_hollow(tensor) else tensor
        entry = self._known.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def learn(self, tensor: Tensor, value: Tensor, choice: "Optional[Choice]" = None) -> None:
        key = id(tensor)
        self._known[key] = (weakref.ref(tensor, lambda _: self._known.pop(key, None)), value, choice)

    def assign(self, tensor: Tensor, value: Optional[Tensor]) -> None:
        """The tensor has this value from now on, with all that share it; none where it is not known."""
        if not tensor.is_cuda:
            return
        held = self.value(tensor)
        if held is not None and value is not None and held.shape == value.shape:
            held.copy_(value)
            return
        if held is not None:
            self._forget(held)
        self._known.pop(id(tensor), None)
        if value is not None and value.numel() == tensor.numel():
            self.learn(tensor, value.reshape(tensor.shape).to(tensor.dtype))

    def _of_storage(self, storage: Any) -> Optional[Tensor]:
        """The value of a tensor that has all of a storage."""
        for reference, value, _ in list(self._known.values()):
            tensor = reference()
            whole = tensor is not None and tensor.is_contiguous() and tensor.numel() * tensor.element_size() == storage.nbytes()
            if whole and tensor.untyped_storage()._cdata == storage._cdata:
                return value.contiguous().clone()
        return None

    def _choice(self, tensors: "list[Tensor]") -> "Optional[Choice]":
        """The choice that the value of one of the tensors was assumed from."""
        entries = (self._known.get(id(tensor)) for tensor in tensors)
        return next((entry[2] for entry in entries if entry is not None and entry[2] is not None), None)

    def _count(self, tensors: "list[Tensor]") -> None:
        """Notes the choice behind these tensors: sizes or branches hang on it from here on."""
        choice = self._choice(tensors)
        if choice is not None:
            _, times, most = self.choices.get(choice.place, (choice.name, 0, 0))
            self.choices[choice.place] = (choice.name, times + 1, max(most, choice.size))

    def _forget(self, value: Tensor) -> None:
        """Every tensor that shares the value's storage is unknown from now on."""
        storage = value.untyped_storage()._cdata
        for key in [key for key, (_, held, _) in self._known.items() if held.untyped_storage()._cdata == storage]:
            del self._known[key]

    def _note(self, notes: "dict[str, tuple[str, int, int]]", name: str, size: int) -> int:
        """Notes what the program does at its present place; how often it did so."""
        place = _place()
        _, times, most = notes.get(place, (name, 0, 0))
        notes[place] = (name, times + 1, max(most, size))
        return times + 1

    # ---- calls ----

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.look()
        try:
            return self._call(function, getattr(function, "__name__", ""), args, kwargs or {})
        finally:
            self._saw()

    def look(self) -> None:
        """Notes what was read since the last call: code that runs without Python, such as TorchScript, does not ask."""
        if self._blind.value != self._seen:
            self._saw()
            self._note(self.reads, "code outside of Python", 0)

    def _saw(self) -> None:
        """What was read up to here is accounted for."""
        self._seen = self._blind.value

    def _call(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        if name in _QUIET:
            out = function(*args, **kwargs)
            if name == "__deepcopy__" and out.is_cuda:
                self._follow(out, args[0])
            return out
        if name == "__get__":
            out = function(*args, **kwargs)
            known = isinstance(out, Tensor) and out.is_cuda and self.value(args[0]) is not None
            return self._beside(function, name, args, kwargs, out) if known else out
        if name == "__set__":
            out = function(*args, **kwargs)
            if getattr(function, "__self__", None) is Tensor.data:
                self._known.pop(id(args[0]), None)
                self._follow(args[0], args[1])
            return out
        if name == "segment_reduce":
            # Its check of the lengths reads the card.
            kwargs = {**kwargs, "unsafe": True}
        tensors = _tensors((args, kwargs))
        cheap = hollow.answer(function, name, args, kwargs, tensors)
        if cheap is not None:
            return cheap[0]
        if name in _READS and any(tensor.is_cuda for tensor in tensors):
            return self._read(function, name, args, kwargs, tensors)
        if name in _MAKERS or name in _RESHAPERS or name in ("__getitem__", "__setitem__"):
            args, kwargs = self._with_numbers(name, args, kwargs)
        if hollow.in_place(name) or kwargs.get("out") is not None:
            return self._change(function, name, args, kwargs, tensors)
        if name == "masked_select":
            function, name, args = self._selected(function, args)
        elif name == "__getitem__":
            args = self._by_numbers(name, args)
        if name == "repeat_interleave":
            kwargs = self._with_size(args, kwargs)
        if name == "ctc_loss":
            # It reads the lengths from the card.
            args = (*args[:2], *(self._or_known(word) for word in args[2:]))
            kwargs = {key: self._or_known(word) if key.endswith("_lengths") else word for key, word in kwargs.items()}
        if name.startswith("_nested_tensor_from_mask"):
            function, args, kwargs = self._nested(function, name, args, kwargs)
        if name == "coalesce" and args[0].is_cuda and not args[0].is_coalesced():
            return self._coalesced(function, args[0])
        before = self._blind.value
        out = function(*args, **kwargs)
        if self._blind.value != before and name not in _MAY_READ and "linalg" not in name:
            self._note(self.reads, name, 0)
        if name == "sparse_coo_tensor" and isinstance(args[0], Tensor):
            indices = self.value(args[0])
            if indices is not None:
                self.learn(out, indices, self._choice([args[0]]))
            return out
        if name in _UNSET:
            if isinstance(out, Tensor) and out.is_cuda and not out.is_floating_point() and _small(out):
                key = id(out)
                self._unset[key] = weakref.ref(out, lambda _: self._unset.pop(key, None))
            return out
        return self._beside(function, name, args, kwargs, out)

    def _follow(self, tensor: Tensor, source: Any) -> None:
        """The tensor has the value of another one from now on, where that is known."""
        value = self.value(source) if isinstance(source, Tensor) else None
        if value is not None and tensor.is_cuda and _small(tensor):
            self.learn(tensor, value.clone(), self._choice([source]))

    def _with_numbers(self, name: str, args: Any, kwargs: Any) -> "tuple[Any, Any]":
        """The same call with numbers where known tensors stand for sizes or bounds: torch would read the card."""

        def number(word: Any) -> Any:
            if isinstance(word, slice):
                return slice(number(word.start), number(word.stop), number(word.step))
            if type(word) in (tuple, list):
                return type(word)(number(part) for part in word)
            if not isinstance(word, Tensor) or not word.is_cuda or word.numel() != 1 or word.is_floating_point() or word.dtype == torch.bool:
                return word
            value = self.value(word)
            if value is None:
                return word
            self._count([word])
            return int(value)

        if name in ("__getitem__", "__setitem__"):
            # Only bounds: a number among indices keeps its meaning as a tensor.
            index = args[1]
            parts = index if isinstance(index, tuple) else (index,)
            made = tuple(number(part) if isinstance(part, slice) else part for part in parts)
            return (args[0], made if isinstance(index, tuple) else made[0], *args[2:]), kwargs
        if not any(isinstance(word, Tensor) for word in (*args[name in _RESHAPERS :], *kwargs.values())) and not any(
            type(word) in (tuple, list) for word in (*args, *kwargs.values())
        ):
            return args, kwargs
        first = args[:1] if name in _RESHAPERS else ()
        return (*first, *(number(word) for word in args[len(first) :])), {key: word if key == "input" else number(word) for key, word in kwargs.items()}

    def _selected(self, function: Callable[..., Any], args: Any) -> "tuple[Callable[..., Any], str, Any]":
        """masked_select as indices, where the mask is known: mask and source are made to fit each other first."""
        mask = args[1] if len(args) > 1 else None
        if not isinstance(mask, Tensor) or self.value(mask) is None:
            return function, "masked_select", args
        source, mask = torch.broadcast_tensors(args[0], mask)
        value = self.value(args[1])
        assert value is not None
        self.learn(mask, value.expand(mask.shape), self._choice([args[1]]))
        return Tensor.__getitem__, "__getitem__", self._by_numbers("masked_select", (source, mask))

    def _or_known(self, word: Any) -> Any:
        """A tensor's value on the CPU, where it is known; anything else as it is."""
        value = self.value(word) if isinstance(word, Tensor) and word.is_cuda else None
        if value is None:
            return word
        self._count([word])
        return value

    def _with_size(self, args: Any, kwargs: Any) -> Any:
        """The keywords of repeat_interleave with the size of its result, which it would read from the card."""
        repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0] if args else None)
        value = self.value(repeats) if isinstance(repeats, Tensor) and repeats.is_cuda else None
        if value is None or kwargs.get("output_size") is not None:
            return kwargs
        self._count([repeats])
        return {**kwargs, "output_size": int(value.sum())}

    def _nested(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> "tuple[Callable[..., Any], Any, Any]":
        """torch's encoders leave padding out: whether a mask allows it, and the lengths, they would ask the card."""
        value = self.value(args[1]) if len(args) > 1 else None
        if value is None:
            return function, args, kwargs
        self._count([args[1]])
        lengths = value.sum(1)
        if name.endswith("_left_aligned"):
            aligned = bool((value == (torch.arange(value.shape[1]) < lengths[:, None])).all())
            return (lambda: aligned), (), {}
        sizes = torch.stack([lengths, torch.full_like(lengths, args[0].shape[2])], 1)
        return torch._nested_from_padded, (args[0], sizes), {}

    def _coalesced(self, function: Callable[..., Any], sparse: Tensor) -> Tensor:
        """A sparse tensor whose indices are counted; all are taken to differ where they are not known."""
        indices = self.value(sparse)
        size = sparse._nnz()
        if indices is not None:
            self._count([sparse])
            place = indices[0]
            for axis, length in zip(indices[1:], sparse.shape[1:]):
                place = place * length + axis
            size = int(torch.unique(place).numel())
        else:
            self._note(self.choices, "coalesce", sparse._values().numel() * sparse.element_size())
        function(sparse)
        places = torch.empty((sparse.sparse_dim(), size), dtype=torch.int64, device=sparse.device)
        entries = torch.empty((size, *sparse._values().shape[1:]), dtype=sparse.dtype, device=sparse.device)
        return torch.sparse_coo_tensor(places, entries, sparse.shape, is_coalesced=True, check_invariants=False)

    def _read(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: "list[Tensor]") -> Any:
        values = [self.value(tensor) for tensor in tensors]
        if all(value is not None for value in values):
            found = function(*self._on_cpu(args), **self._on_cpu(kwargs))
            # A float is printed or logged; what sizes hang on is a whole number, a list or a branch.
            if not isinstance(found, float):
                self._count(tensors)
            return found
        passes = checks.answer(_caller()) if name in _TRUTHS else None
        if passes is not None:
            self._note(self.reads, "a check", 0)
            return passes
        times = self._note(self.reads, name, 0)
        if name == "__bool__" and times % _PATIENCE == 0:
            return True
        found = function(*args, **kwargs)
        return _mapped(found, lambda number: number or _ALMOST_ZERO) if isinstance(found, (float, list)) and args[0].is_floating_point() else found

    def _change(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: "list[Tensor]") -> Any:
        """In-place functions: the value changes with the tensor, or is lost."""
        target = args[0] if args and isinstance(args[0], Tensor) else None
        if name == "__setitem__" and target is not None:
            # A mask alone with one value is filled without counting.
            counted = isinstance(args[1], tuple) or (isinstance(args[2], Tensor) and args[2].numel() > 1)
            args = self._by_numbers(name, args) if counted else args
        if kwargs.get("out") is not None:
            return self._into(function, name, args, kwargs)
        before = self._blind.value
        out = function(*args, **kwargs)
        if self._blind.value != before and name not in _MAY_READ and name != "__setitem__":
            self._note(self.reads, name, 0)
        if args and isinstance(args[0], (tuple, list)):
            self._change_all(function, args, kwargs, tensors)
            return out
        if target is None:
            return out
        if not target.is_cuda:
            self._to_host(function, name, args, kwargs, tensors)
            return out
        if name == "_amp_update_scale_":
            # Gradients are taken to be finite, and the scale grows in thousands of steps.
            return out
        value = self.value(target)
        if value is None and name in _FILLS and _small(target) and not target.requires_grad:
            value = torch.empty(target.shape, dtype=target.dtype)
        if value is None and name in _PARTS and id(target) in self._unset:
            value = torch.zeros(target.shape, dtype=target.dtype)
        if value is None:
            return out
        others = [tensor for tensor in tensors if tensor is not target]
        if all(self.value(other) is not None for other in others):
            try:
                self._draw(name, lambda: function(value, *self._on_cpu(args[1:]), **self._on_cpu(kwargs)))
                self.learn(target, value, self._choice(tensors))
                return out
            except Exception:
                # What the CPU cannot do is not known.
                pass
        self._forget(value)
        self._known.pop(id(target), None)
        return out

    def _change_all(self, function: Callable[..., Any], args: Any, kwargs: Any, tensors: "list[Tensor]") -> None:
        """Functions that change a list of tensors: their values change with them, or are lost."""
        changed = [(tensor, self.value(tensor)) for tensor in args[0] if isinstance(tensor, Tensor) and tensor.is_cuda]
        if all(value is None for _, value in changed):
            return
        if all(self.value(tensor) is not None for tensor in tensors):
            try:
                self._draw("", lambda: function(*self._on_cpu(args), **self._on_cpu(kwargs)))
                return
            except Exception:
                # What the CPU cannot do is not known.
                pass
        for tensor, value in changed:
            if value is not None:
                self._forget(value)
                self._known.pop(id(tensor), None)

    def _to_host(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: "list[Tensor]") -> None:
        """What a tensor of the host gets from the card: the value, or a note that it is not known."""
        sources = [tensor for tensor in tensors if tensor.is_cuda]
        if not sources or name not in ("copy_", "__setitem__"):
            return
        if all(self.value(tensor) is not None for tensor in tensors[1:]):
            with torch.no_grad():
                function(args[0], *self._on_cpu(args[1:]), **self._on_cpu(kwargs))
            self._count(sources)
        else:
            self._note(self.reads, name, 0)

    def _into(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """Functions that write into a tensor that they are given: it has the value of the result."""
        out = function(*args, **kwargs)
        target = kwargs["out"]
        for tensor in _tensors(target):
            value = self.value(tensor) if tensor.is_cuda else None
            if value is not None:
                self._forget(value)
            self._known.pop(id(tensor), None)
        inputs = _tensors((args, {key: word for key, word in kwargs.items() if key != "out"}))
        if isinstance(target, Tensor) and target.is_cuda and _small(target) and all(self.value(tensor) is not None for tensor in inputs):
            try:
                words = {key: word for key, word in self._on_cpu({key: word for key, word in kwargs.items() if key != "out"}).items() if key != "generator"}
                value = self._draw(name, lambda: function(*self._on_cpu(args), **words))
                if isinstance(value, Tensor) and value.shape == target.shape:
                    self.learn(target, value.to(target.dtype), self._choice(inputs))
            except Exception:
                # What the CPU cannot do is not known.
                pass
        return out

    def _beside(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, out: Any) -> Any:
        """Runs a function on the CPU too where all of its inputs are known, and learns what comes out."""
        inputs = _tensors((args, kwargs))
        known = all(self.value(tensor) is not None for tensor in inputs)
        if not known and name not in _CHOICES and name not in _SIZED and name not in _MOVES and name not in _FINITE:
            return out
        outputs = _tensors(out)
        if not outputs or not (any(tensor.is_cuda for tensor in outputs) or any(tensor.is_cuda for tensor in inputs)):
            return out
        if not known:
            return self._unknown(name, args, kwargs, out, outputs)
        if not all(_small(tensor) for tensor in outputs) or any(tensor.requires_grad for tensor in outputs):
            return out
        try:
            words = self._on_cpu(kwargs)
            words.pop("generator", None)
            if not inputs:
                words["device"] = "cpu"
            values = self._draw(name, lambda: args[0].detach() if name == "cuda" and not args[0].is_cuda else function(*self._on_cpu(args), **words))
        except Exception:
            return out
        found = _tensors(values)
        if len(found) != len(outputs):
            return out
        own = any(not tensor.is_cuda for tensor in inputs)
        choice = self._choice(inputs)
        if name in _MOVES or (name in _SIZED and any(_depends_on_values(name, args, kwargs))):
            self._count(inputs)
        pairs = iter(found)
        return _mapped(out, lambda leaf: self._paired(leaf, next(pairs), own, choice) if isinstance(leaf, Tensor) else leaf)

    def _paired(self, output: Tensor, value: Tensor, own: bool, choice: "Optional[Choice]") -> Tensor:
        if not output.is_cuda:
            # What came from the card holds zeros: the program gets the value.
            return value.clone()
        if output.shape != value.shape:
            output = torch.empty(value.shape, dtype=value.dtype, device=output.device)
        # The program's own tensor may change under the value.
        self.learn(output, value.clone() if own else value, choice)
        return output

    def _unknown(self, name: str, args: Any, kwargs: Any, out: Any, outputs: "list[Tensor]") -> Any:
        if name in _FINITE:
            if outputs[0].is_cuda and outputs[0].numel() <= _MOST_ALIKE:
                self.learn(outputs[0], torch.tensor(_FINITE[name]).expand(outputs[0].shape))
        elif name in _CHOICES:
            chosen = _chosen(name, args, kwargs, outputs)
            if chosen is not None:
                self.learn(outputs[-1], chosen, Choice(_place(), name, chosen.numel() * chosen.element_size()))
        elif name in _SIZED and any(_depends_on_values(name, args, kwargs)):
            self._note(self.choices, f"the size of {name}", _most(name, args))
        elif any(not tensor.is_cuda for tensor in outputs):
            self._note(self.reads, name, 0)
        return out

    # ---- helpers ----

    def _by_numbers(self, name: str, args: Any) -> Any:
        """Known masks among indices become the numbers of what they choose: the card could not count them."""
        index = args[1]
        parts = index if isinstance(index, tuple) else (index,)
        made: list[Any] = []
        changed = False
        for part in parts:
            value = self.value(part) if isinstance(part, Tensor) and part.is_cuda and part.dtype in (torch.bool, torch.uint8) else None
            if value is None or value.dim() == 0:
                made.append(part)
                continue
            changed = True
            self._count([part])
            if part.numel() > _FEW:
                self._note(self.sampled, name, part.numel())
            for numbers in value.to(torch.bool).nonzero(as_tuple=True):
                on_card = torch.empty(numbers.shape, dtype=torch.int64, device=part.device)
                self.learn(on_card, numbers)
                made.append(on_card)
        return (args[0], tuple(made), *args[2:]) if changed else args

    def _on_cpu(self, words: Any) -> Any:
        def moved(word: Any) -> Any:
            if isinstance(word, Tensor):
                return self.value(word)
            if isinstance(word, torch.device):
                return torch.device("cpu")
            return "cpu" if isinstance(word, str) and word.startswith("cuda") else word

        return _mapped(words, moved)

    def _draw(self, name: str, call: Callable[[], Any]) -> Any:
        """Calls without gradients; random numbers come from a state of their own."""
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            if name not in _RANDOM:
                return call()
            before = torch.get_rng_state()
            torch.set_rng_state(self._random)
            try:
                return call()
            finally:
                self._random = torch.get_rng_state()
                torch.set_rng_state(before)


def _tensors(words: Any) -> "list[Tensor]":
    """The tensors in arguments or results, which nest in tuples, lists and dicts alone."""
    if isinstance(words, Tensor):
        return [words]
    if isinstance(words, (tuple, list)):
        return [tensor for word in words for tensor in _tensors(word)]
    if isinstance(words, dict):
        return [tensor for word in words.values() for tensor in _tensors(word)]
    return []


def _mapped(words: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest, with every leaf changed."""
    if type(words) in (tuple, list):
        return type(words)(_mapped(word, change) for word in words)
    if isinstance(words, tuple) and not isinstance(words, torch.Size):
        # A named tuple, or a structure of torch's return types, which takes one sequence.
        parts = [_mapped(word, change) for word in words]
        return type(words)(*parts) if hasattr(words, "_fields") else type(words)(parts)
    if type(words) is dict:
        return {key: _mapped(word, change) for key, word in words.items()}
    return change(words)


def _small(tensor: Tensor) -> bool:
    return bool(tensor.numel() <= (_MOST_FLOATS if tensor.is_floating_point() or tensor.is_complex() else _MOST_INTEGERS))


def _chosen(name: str, args: Any, kwargs: Any, outputs: "list[Tensor]") -> Optional[Tensor]:
    """An even choice in the place of the last result; None where the function chooses no places, as `max` of all."""
    source, last = args[0] if args else kwargs.get("input"), outputs[-1]
    if not isinstance(source, Tensor) or not last.is_cuda or last.dtype != torch.int64 or not last.numel():
        return None
    if name == "bincount":
        # As many of each, so that they add up.
        return (torch.arange(last.numel()) < source.numel() % last.numel()).to(torch.int64) + source.numel() // last.numel()
    if name in _PAIRS and len(outputs) < 2:
        return None
    # Positions of `dim`: the second word, after `k` the third; sorts and draws are along the last.
    dimension = kwargs.get("dim", next(iter(args[2 if name in ("topk", "kthvalue") else 1 :]), None))
    if name == "multinomial" or isinstance(dimension, bool) or not isinstance(dimension, int):
        dimension = None
    if dimension is None and name in ("argmax", "argmin"):
        choices = source.numel()
    else:
        choices = source.shape[-1 if dimension is None else dimension] if source.dim() else 1
    return (torch.arange(last.numel()) % max(choices, 1)).reshape(last.shape)


def _depends_on_values(name: str, args: Any, kwargs: Any) -> "list[bool]":
    if name == "__getitem__":
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        return [isinstance(part, Tensor) and part.dtype in (torch.bool, torch.uint8) for part in parts]
    if name == "repeat_interleave":
        repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
        return [isinstance(repeats, Tensor)]
    return [name != "where" or len(args) == 1]


def _most(name: str, args: Any) -> int:
    """Bytes of the result if everything is chosen."""
    source = args[0]
    if name in ("nonzero", "argwhere", "where"):
        return int(source.numel() * 8 * max(source.dim(), 1))
    return int(source.numel() * source.element_size())


def _caller() -> Any:
    """The frame of whoever called torch, be it torch itself."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


def _place() -> str:
    """The line of the program that asked: the nearest that is neither torch's nor this package's."""
    frame: Any = sys._getframe(2)
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    torch_folder = os.path.dirname(os.path.abspath(torch.__file__))
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((here, torch_folder, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"
