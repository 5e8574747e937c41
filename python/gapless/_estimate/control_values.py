"""Values for control flow, on a card that stores none.

On the card every read gives zeros, so a program that looks at a mask or a length would go astray. This mode repeats on
the CPU every call that depends on known values alone (indices, masks, lengths, small inputs), and answers `bool`,
`item`, `tolist` and the like from there. It works above the dispatcher, so allocations on the card do not change.
`known.py` keeps the values, `reads.py` answers reads of values that are not known.

Functions that choose among unknown numbers (topk, argmax, sort, multinomial) are assumed to choose evenly, as a
balanced router does, and noted. Masks of unknown numbers choose nothing, and are noted with what they could choose. The
program's random numbers stay as they are: values here are drawn from a state of their own.
"""

import ctypes
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from . import backwards, calls, hollow, stored, weighted
from .calls import mapped, tensors_in
from .inside import Inside, is_foreign
from .known import GUESS, MOST_ELEMENTS, Choice, Known
from .partly import partly
from .reads import Reads
from .unknown import ALMOST_ZERO

# Calls beside the program run without the program's own modes, such as its default device.
_alone = torch._C.DisableTorchFunction

# Masks of at most this many elements choose too little to matter.
_FEW = 4096
# The answers to whether numbers are finite are kept for tensors of at most this many elements.
_MOST_ALIKE = 1 << 22
# Values that follow from a guessed number are kept up to this size: larger ones decide no control flow.
_FEW_GUESSED = 64


class Values(TorchFunctionMode):  # type: ignore[misc]
    """`notes` has the reads and the assumptions."""

    def __init__(self, notes: "Optional[Reads]" = None) -> None:
        super().__init__()
        self.known = Known()
        self.notes = notes if notes is not None else Reads()
        self._random = torch.Generator().manual_seed(0).get_state()
        # The card's count of reads that it could not answer, and the count up to which they were looked at.
        card = ctypes.CDLL("libgapless-card.so")
        self._blind = ctypes.c_ulong.in_dll(card, "card_blind_reads")
        self._seen = self._blind.value
        self.known.answer_reads(card)
        stored.keep(self.known, self._saw)
        torch.nn.modules.module.register_module_parameter_registration_hook(self._parameter)
        backwards.keep(self)

    # ---- what is known ----

    def value(self, tensor: Tensor) -> Optional[Tensor]:
        """The tensor's value on the CPU, if it is known."""
        return self.known.value(tensor)

    def assign(self, tensor: Tensor, value: Optional[Tensor]) -> None:
        """The tensor, and all that share its memory, have this value from now on; None: the value is not known."""
        if not tensor.is_cuda:
            return
        if value is not None and value.numel() == tensor.numel():
            self.known.learn(tensor, value.reshape(tensor.shape).to(tensor.dtype))
        else:
            self.known.forget(tensor)

    def _parameter(self, _module: Any, _name: str, parameter: Any) -> None:
        if isinstance(parameter, Tensor):
            self.known.never(parameter)

    def _choice(self, tensors: "list[Tensor]") -> "Optional[Choice]":
        """The choice that the value of one of the tensors was assumed from."""
        return next(filter(None, map(self.known.choice, tensors)), None)

    def _count(self, tensors: "list[Tensor]") -> None:
        """Notes the choice behind these tensors: sizes or branches depend on it from here on."""
        choice = self._choice(tensors)
        if choice is not None and choice.name != GUESS:
            self.notes.chose(choice.name, choice.size, choice.place)

    # ---- calls ----

    def __torch_function__(self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.look()
        try:
            return self._call(function, getattr(function, "__name__", ""), args, kwargs or {})
        finally:
            self._saw()

    def look(self) -> None:
        """Notes reads since the last call: code that runs without Python, such as TorchScript, does not come here."""
        if self._blind.value != self._seen:
            self._saw()
            self.notes.read("code outside of Python")

    def _saw(self) -> None:
        """Marks all reads up to here as accounted for."""
        self._seen = self._blind.value

    def _call(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        if name in calls.QUIET:
            out = function(*args, **kwargs)
            if name == "__deepcopy__" and out.is_cuda:
                self._follow(out, args[0])
            return out
        if name in ("__get__", "__set__"):
            # An attribute such as .data shares the memory, and so the value.
            out = function(*args, **kwargs)
            if name == "__set__" and isinstance(args[0], torch.nn.Parameter) and getattr(function, "__self__", None) is Tensor.data:
                self.known.never(args[0])
            return out
        if name == "segment_reduce":
            # torch's check of the lengths would read the card.
            kwargs = {**kwargs, "unsafe": True}
        if name == "cov" and any(isinstance(kwargs.get(word), Tensor) for word in ("fweights", "aweights")):
            function = weighted.cov
        tensors = tensors_in((args, kwargs))
        if is_foreign(function) and any(tensor.is_cuda for tensor in tensors):
            return self._foreign(function, name, args, kwargs)
        cheap = hollow.answer(function, name, args, kwargs, tensors)
        if cheap is not None:
            return cheap[0]
        if name in calls.READS and any(tensor.is_cuda for tensor in tensors):
            return self._read(function, name, args, kwargs, tensors)
        if name in calls.MAKERS or name in calls.RESHAPERS or name in ("__getitem__", "__setitem__"):
            args, kwargs = self._with_numbers(name, args, kwargs)
        if hollow.in_place(name) or kwargs.get("out") is not None or kwargs.get("inplace") is True:
            return self._change(function, name, args, kwargs, tensors)
        if name == "masked_select":
            function, name, args = self._selected(function, args)
        elif name == "__getitem__":
            args = self._by_numbers(name, args)
        if name == "repeat_interleave":
            kwargs = self._with_size(args, kwargs)
        if name == "ctc_loss":
            # torch would read the lengths from the card.
            args = (*args[:2], *(self._or_known(word) for word in args[2:]))
            kwargs = {key: self._or_known(word) if key.endswith("_lengths") else word for key, word in kwargs.items()}
        if name.startswith("_nested_tensor_from_mask"):
            function, args, kwargs = self._nested(function, name, args, kwargs)
        if name == "coalesce" and args[0].is_cuda and not args[0].is_coalesced():
            return self._coalesced(function, args[0])
        before = self._blind.value
        out = function(*args, **kwargs)
        if self._blind.value != before and name not in calls.MAY_READ and "linalg" not in name:
            self.notes.read(name)
        if name == "sparse_coo_tensor" and isinstance(args[0], Tensor):
            indices = self.value(args[0])
            if indices is not None:
                self.known.learn(out, indices)
            return out
        if name in calls.UNSET:
            if isinstance(out, Tensor) and out.is_cuda:
                self.known.unset(out)
            return out
        with _alone():
            return self._beside(function, name, args, kwargs, out)

    def _foreign(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """An operator of another library."""
        with Inside(self._call):
            out = function(*args, **kwargs)
        with _alone():
            return self._beside(function, name, args, kwargs, out)

    def _follow(self, tensor: Tensor, source: Any) -> None:
        """Gives the tensor the value of another one, if that is known."""
        value = self.value(source) if isinstance(source, Tensor) else None
        if value is not None and tensor.is_cuda:
            self.known.learn(tensor, value, self._choice([source]))

    def _with_numbers(self, name: str, args: Any, kwargs: Any) -> "tuple[Any, Any]":
        """The same call with numbers in place of known tensors that are sizes or bounds: torch would read the card."""

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
            # Replaces only bounds of slices: a tensor among indices chooses in another way than a number.
            index = args[1]
            parts = index if isinstance(index, tuple) else (index,)
            made = tuple(number(part) if isinstance(part, slice) else part for part in parts)
            return (args[0], made if isinstance(index, tuple) else made[0], *args[2:]), kwargs
        if not any(isinstance(word, Tensor) for word in (*args[name in calls.RESHAPERS :], *kwargs.values())) and not any(
            type(word) in (tuple, list) for word in (*args, *kwargs.values())
        ):
            return args, kwargs
        first = args[:1] if name in calls.RESHAPERS else ()
        return (*first, *(number(word) for word in args[len(first) :])), {key: word if key == "input" else number(word) for key, word in kwargs.items()}

    def _selected(self, function: Callable[..., Any], args: Any) -> "tuple[Callable[..., Any], str, Any]":
        """masked_select as indices, if the mask is known: mask and source are made to fit each other first."""
        mask = args[1] if len(args) > 1 else None
        if not isinstance(mask, Tensor) or self.value(mask) is None:
            return function, "masked_select", args
        source, mask = torch.broadcast_tensors(args[0], mask)
        return Tensor.__getitem__, "__getitem__", self._by_numbers("masked_select", (source, mask))

    def _or_known(self, word: Any) -> Any:
        """A tensor's value on the CPU, if it is known; anything else as it is."""
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
        """torch's encoders leave padding out. They would read lengths, and whether masks allow it, from the card."""
        value = self.value(args[1]) if len(args) > 1 else None
        if value is None:
            return function, args, kwargs
        self._count([args[1]])
        lengths = value.sum(1)
        if name.endswith("_left_aligned"):
            aligned = bool((value == (torch.arange(value.shape[1], device="cpu") < lengths[:, None])).all())
            return (lambda: aligned), (), {}
        sizes = torch.stack([lengths, torch.full_like(lengths, args[0].shape[2])], 1)
        return torch._nested_from_padded, (args[0], sizes), {}

    def _coalesced(self, function: Callable[..., Any], sparse: Tensor) -> Tensor:
        """A sparse tensor whose indices are counted; if they are not known, all are taken to differ."""
        indices = self.value(sparse)
        size = sparse._nnz()
        if indices is not None:
            place = indices[0]
            for axis, length in zip(indices[1:], sparse.shape[1:]):
                place = place * length + axis
            size = int(torch.unique(place).numel())
        else:
            self.notes.chose("coalesce", sparse._values().numel() * sparse.element_size())
        function(sparse)
        places = torch.empty((sparse.sparse_dim(), size), dtype=torch.int64, device=sparse.device)
        entries = torch.empty((size, *sparse._values().shape[1:]), dtype=sparse.dtype, device=sparse.device)
        return torch.sparse_coo_tensor(places, entries, sparse.shape, is_coalesced=True, check_invariants=False)

    def _read(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: "list[Tensor]") -> Any:
        if name in ("equal", "allclose") and len({tensor.device for tensor in tensors}) > 1:
            # A card has an error here, too, and torch raises it.
            return function(*args, **kwargs)
        if all(self.value(tensor) is not None for tensor in tensors):
            with _alone():
                found = function(*self._on_cpu(args), **self._on_cpu(kwargs))
            if self.known.guess(tensors):
                return self.notes.guessed(name, found)
            # A float is printed or logged; sizes and branches depend on a whole number or a list.
            if not isinstance(found, float):
                self._count(tensors)
            return found
        if name == "equal":
            # Tensors of one shape that a program compares were most likely made in the same way.
            return self.notes.guessed(name, tensors[0].shape == tensors[1].shape)
        return self.notes.unknown(name, lambda: function(*args, **kwargs), args[0].is_floating_point())

    # ---- what changes tensors ----

    def _change(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: "list[Tensor]") -> Any:
        """In-place functions: the value changes with the tensor, or is lost."""
        target = args[0] if args and isinstance(args[0], Tensor) else None
        if name == "__setitem__" and target is not None:
            # torch fills a single mask with one value without counting its elements.
            counted = isinstance(args[1], tuple) or (isinstance(args[2], Tensor) and args[2].numel() > 1)
            args = self._by_numbers(name, args) if counted else args
        if kwargs.get("out") is not None:
            return self._into(function, name, args, kwargs)
        before = self._blind.value
        out = function(*args, **kwargs)
        if self._blind.value != before and name not in calls.MAY_READ and name != "__setitem__":
            self.notes.read(name)
        if args and isinstance(args[0], (tuple, list)):
            self._change_all(function, args, kwargs, tensors)
            return out
        if target is None or name in calls.SHAPES:
            return out
        if not target.is_cuda:
            self._to_host(function, name, args, kwargs, tensors)
            return out
        if name == "_amp_update_scale_":
            # Gradients are taken to be finite, and the scale grows in thousands of steps.
            return out
        with _alone():
            if not self._changed(function, name, args, kwargs, target, [tensor for tensor in tensors if tensor is not target]):
                self._lost(name, args, target)
        return out

    def _changed(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, target: Tensor, others: "list[Tensor]") -> bool:
        """Applies a change of a tensor to its value. True if the value is known afterwards."""
        fills = name in calls.FILLS or name == "__setitem__"
        if isinstance(target, torch.nn.Parameter) or target.numel() > MOST_ELEMENTS or (fills and target.requires_grad):
            return False
        if not all(self.value(other) is not None for other in others):
            return False
        whole = name in calls.FILLS or self.known.is_unset(target) or self.value(target) is not None
        shadow = self.known.to_write(target, not whole) if whole or (fills and not target.is_floating_point()) else None
        if shadow is None:
            return False
        value = shadow.view(target)
        try:
            self._draw(name, lambda: function(value, *self._on_cpu(args[1:]), **self._on_cpu(kwargs)))
            if whole:
                shadow.mark(target, True)
            else:
                for flags in shadow.flags(target):
                    function(flags, self._on_cpu(args[1]), True)
        except Exception:
            # The CPU cannot run this call: the value is not known.
            return False
        shadow.choice = self._choice(others) or shadow.choice
        return True

    def _lost(self, name: str, args: Any, target: Tensor) -> None:
        """The tensor got unknown values: in all of it, or in the part that known indices name."""
        shadow = self.known.shadow(target)
        if shadow is None:
            return
        words = tensors_in(args[1]) if name == "__setitem__" else []
        if name != "__setitem__" or not all(self.value(word) is not None for word in words):
            self.known.forget(target)
            return
        try:
            shadow.split()
            for flags in shadow.flags(target):
                flags[self._on_cpu(args[1])] = False
        except Exception:
            self.known.forget(target)

    def _change_all(self, function: Callable[..., Any], args: Any, kwargs: Any, tensors: "list[Tensor]") -> None:
        """Functions that change a list of tensors: their values change with them, or are lost."""
        changed = [tensor for tensor in args[0] if isinstance(tensor, Tensor) and tensor.is_cuda]
        if all(self.known.shadow(tensor) is None for tensor in changed):
            return
        if all(self.value(tensor) is not None for tensor in tensors):
            try:
                self._draw("", lambda: function(*self._on_cpu(args), **self._on_cpu(kwargs)))
                return
            except Exception:
                # The CPU cannot run this call: the values are not known.
                pass
        for tensor in changed:
            self.known.forget(tensor)

    def _to_host(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, tensors: "list[Tensor]") -> None:
        """Gives a tensor of the host the value that it gets from the card, or notes that it is not known."""
        sources = [tensor for tensor in tensors if tensor.is_cuda]
        if not sources or name not in ("copy_", "__setitem__"):
            return
        if all(self.value(tensor) is not None for tensor in tensors[1:]):
            with torch.no_grad():
                function(args[0], *self._on_cpu(args[1:]), **self._on_cpu(kwargs))
            self._count(sources)
        else:
            self.notes.read(name)

    def _into(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any) -> Any:
        """Functions that write into tensors that they are given: those have the values of the results."""
        targets = tensors_in(kwargs["out"])
        words = {key: word for key, word in kwargs.items() if key != "out"}
        inputs = tensors_in((args, words))
        values: list[Tensor] = []
        if any(target.is_cuda for target in targets) and all(self.value(tensor) is not None for tensor in inputs):
            try:
                # Before the call, because it may also read a tensor that it writes to.
                given = {key: word for key, word in self._on_cpu(words).items() if key != "generator"}
                if not inputs:
                    given["device"] = "cpu"
                values = [value.clone() for value in tensors_in(self._draw(name, lambda: function(*self._on_cpu(args), **given)))]
            except Exception:
                # The CPU cannot run this call: the values are not known.
                pass
        choice = self._choice(inputs)
        before = self._blind.value
        layouts = [_layout(target) for target in targets]
        out = function(*args, **kwargs)
        if self._blind.value != before and name not in calls.MAY_READ:
            self.notes.read(name)
        for number, target in enumerate(targets):
            if len(values) == len(targets) and values[number].shape != target.shape:
                _laid(target, layouts[number], values[number].shape)
            if target.is_cuda:
                self.known.forget(target)
            if len(values) != len(targets) or values[number].shape != target.shape or target.numel() > MOST_ELEMENTS:
                continue
            if target.is_cuda:
                self.known.learn(target, values[number].to(target.dtype), choice)
            else:
                target.copy_(values[number])
        return out

    # ---- what makes tensors ----

    def _beside(self, function: Callable[..., Any], name: str, args: Any, kwargs: Any, out: Any) -> Any:
        """Runs a function on the CPU too if all of its inputs are known, and learns the results."""
        inputs = tensors_in((args, kwargs))
        outputs = tensors_in(out)
        if not outputs or not (any(tensor.is_cuda for tensor in outputs) or any(tensor.is_cuda for tensor in inputs)):
            return out
        known = all(self.value(tensor) is not None for tensor in inputs)
        if not known:
            part = partly(self.known, function, name, args, kwargs, out) if inputs[0].device == outputs[0].device else None
            if part is not None:
                self.known.learn_part(out, *part)
            self.known.guess_number(out, ALMOST_ZERO)
            if part is not None:
                return out
            if name in calls.CHOICES or name in calls.SIZED or name in calls.MOVES or name in calls.FINITE:
                return self._unknown(name, args, kwargs, out, outputs)
            return out
        most = _FEW_GUESSED if self.known.guess(inputs) else MOST_ELEMENTS
        if not all(tensor.numel() <= most and (tensor.numel() == 1 or not tensor.requires_grad) for tensor in outputs):
            return out
        if all(tensor.is_cuda and tensor.numel() and self.value(tensor) is not None for tensor in outputs):
            # Views share the memory of their base. A tensor that is empty here may have a size on a card.
            return out
        try:
            words = self._on_cpu(kwargs)
            words.pop("generator", None)
            if not inputs:
                words["device"] = "cpu"
            values = self._draw(name, lambda: args[0].detach() if name == "cuda" and not args[0].is_cuda else function(*self._on_cpu(args), **words))
        except Exception:
            return out
        found = tensors_in(values)
        if len(found) != len(outputs):
            return out
        choice = self._choice(inputs) if name not in calls.FINITE else None
        if name in calls.MOVES or (name in calls.SIZED and calls.size_hangs_on_values(name, args, kwargs)):
            self._count(inputs)
        pairs = iter(found)
        return mapped(out, lambda leaf: self._paired(leaf, next(pairs), choice) if isinstance(leaf, Tensor) else leaf)

    def _paired(self, output: Tensor, value: Tensor, choice: "Optional[Choice]") -> Tensor:
        if not output.is_cuda:
            # A copy from the card holds zeros: the program gets the value.
            return value.clone()
        if output.shape != value.shape:
            output = torch.empty(value.shape, dtype=value.dtype, device=output.device)
        self.known.learn(output, value, choice)
        return output

    def _unknown(self, name: str, args: Any, kwargs: Any, out: Any, outputs: "list[Tensor]") -> Any:
        if name in calls.FINITE:
            if outputs[0].is_cuda and outputs[0].numel() <= _MOST_ALIKE:
                self.known.learn(outputs[0], torch.tensor(calls.FINITE[name], device="cpu").expand(outputs[0].shape))
        elif name in calls.CHOICES:
            chosen = calls.even_choice(name, args, kwargs, outputs)
            if chosen is not None:
                self.known.learn(outputs[-1], chosen, Choice(calls.place(), name, chosen.numel() * chosen.element_size()))
        elif name in calls.SIZED and calls.size_hangs_on_values(name, args, kwargs):
            self.notes.chose(f"the size of {name}", calls.size_of_everything(name, args))
        elif any(not tensor.is_cuda for tensor in outputs):
            self.notes.read(name)
        return out

    # ---- helpers ----

    def _by_numbers(self, name: str, args: Any) -> Any:
        """Replaces known masks among indices by the numbers of the elements that they choose: the card cannot count."""
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
                self.notes.sampled_at(name, part.numel())
            for numbers in value.to(torch.bool).nonzero(as_tuple=True):
                on_card = torch.empty(numbers.shape, dtype=torch.int64, device=part.device)
                self.known.learn(on_card, numbers)
                made.append(on_card)
        return (args[0], tuple(made), *args[2:]) if changed else args

    def _on_cpu(self, words: Any) -> Any:
        def moved(word: Any) -> Any:
            if isinstance(word, Tensor):
                return self.value(word)
            if isinstance(word, torch.device):
                return torch.device("cpu")
            return "cpu" if isinstance(word, str) and word.startswith("cuda") else word

        return mapped(words, moved)

    def _draw(self, name: str, call: Callable[[], Any]) -> Any:
        """Calls without gradients; random numbers come from a state of their own."""
        with _alone(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            if name not in calls.RANDOM:
                return call()
            before = torch.get_rng_state()
            torch.set_rng_state(self._random)
            try:
                return call()
            finally:
                self._random = torch.get_rng_state()
                torch.set_rng_state(before)


def _layout(target: Tensor) -> Any:
    """A tensor's layout over its memory; None if it has none on the card."""
    if not target.is_cuda or target.layout != torch.strided:
        return None
    return target.shape, target.stride(), target.storage_offset()


def _laid(target: Tensor, layout: Any, shape: Any) -> None:
    """Gives a tensor that was written into its result's shape: the card counts none if a size depends on values."""
    if layout is not None and layout[0] == shape:
        target.as_strided_(*layout)
    elif layout is not None:
        target.resize_(shape)
