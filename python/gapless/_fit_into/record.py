"""Records one real training step: which operators ran, which storages they made, what autograd saved, when it asked
again, and the memory in use around each operator. The step computes what it always computes.

Two modes watch. The function mode sees the program's calls (torch.add, x.view, F.linear), whose arguments decide which
operators run: a later step may replay an operator only if its call has the same arguments but for the tensors' content.
The dispatch mode sees the operators. Both are on from the model's forward until the step ends.
"""

import weakref
from typing import Any, Optional

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .leaves import Mystery, describe, is_plain, refs, surroundings, template, tensors
from .meters import meter_of, rounded
from .operators import Nature, nature

_LAST = 1 << 30


class Value:
    """A storage that an operator of forward made, or that was there before (`birth` is None)."""

    __slots__ = ("aliases", "birth", "cdata", "death", "natural", "need", "number", "saved", "size", "writers")

    def __init__(self, number: int, cdata: int, size: int, birth: Optional[int]) -> None:
        self.number, self.cdata, self.size, self.birth = number, cdata, size, birth
        self.writers: list[int] = []
        self.aliases = 0
        self.natural = self.death = _LAST
        self.need: Optional[int] = None
        self.saved = False


class Op:
    """An operator that makes or changes a storage."""

    __slots__ = ("args", "before", "call", "crest", "func", "ins", "kwargs", "nature", "offset", "outs")

    def __init__(self, func: Any, call: Optional["Call"]) -> None:
        self.func, self.call = func, call
        self.ins: list[int] = []
        # (position among the flat outputs, value)
        self.outs: list[tuple[int, int]] = []
        self.args: Any = None
        self.kwargs: Any = None
        self.nature = Nature.OPAQUE
        self.before = self.crest = self.offset = 0


class Call:
    """A call of the program: its key, what it was called with, its operators, what it returned and what was saved."""

    __slots__ = ("args", "described", "func", "key", "number", "ops", "outs", "packs", "surroundings")

    def __init__(self, number: int, key: tuple[Any, ...], func: Any) -> None:
        self.number, self.key, self.func = number, key, func
        self.described: Any = None
        self.surroundings: Any = None
        # Values of the tensors among the arguments and among the outputs, in order.
        self.args: list[int] = []
        self.outs: list[int] = []
        # Tensors that autograd saved in the call: (value, geometry).
        self.packs: list[tuple[int, Any]] = []
        self.ops: list[int] = []


class Held:
    """A saved tensor while the recorder runs."""

    __slots__ = ("geometry", "recorder", "tensor", "token", "value", "version")

    def __init__(self, recorder: "Recorder", value: Optional[Value], tensor: Any, token: Any) -> None:
        self.recorder, self.value, self.token = recorder, value, token
        # A tensor of its own even for leaves: the recorder counts who holds the storage.
        self.tensor = tensor if value is None and tensor.is_leaf else tensor.detach()
        self.version = tensor._version

    def unpack(self) -> Any:
        from .._offload_keeper import check_version

        check_version(self.tensor, self.version)
        self.recorder.asked(self.value)
        return self.tensor


class Recorder:
    """One step. `frames` counts calls by scope; see scopes.py."""

    def __init__(self, device: Any, frames: Any) -> None:
        self.device, self.frames = device, frames
        self.meter = meter_of(device)
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.calls: list[Call] = []
        self.asks: list[tuple[int, int]] = []
        self.call: Optional[Call] = None
        self.is_quiet = False
        self.is_forward = False
        self._known: dict[int, Value] = {}
        self._watchers: list[Any] = []
        self._pending: dict[int, Value] = {}
        self._uses = getattr(torch._C, "_storage_Use_Count", None)
        self._functions, self._operators = _Functions(self), _Operators(self)

    # ---- the step ----

    def begin_forward(self) -> None:
        """The operators are watched until the end of the step, the calls only in forward."""
        if not self.ops and not self.is_forward:
            self.meter.look()
            self._operators.__enter__()
        self._functions.__enter__()
        self.is_forward = True

    def end_forward(self) -> None:
        self._functions.__exit__(None, None, None)
        self.is_forward = False

    def end(self) -> list[float]:
        """The step is over. Returns the microseconds of each operator."""
        self._operators.__exit__(None, None, None)
        if self.ops:
            self.ops[-1].crest = max(self.ops[-1].crest, self.meter.look()[1])
        times: list[float] = self.meter.microseconds()
        last = len(self.ops)
        for value in self.values:
            value.death = min(value.death, last)
            value.natural = min(value.natural, value.death)
        self._watchers.clear()
        self._pending.clear()
        return times

    # ---- values ----

    def value(self, tensor: Any) -> Value:
        """The value that a tensor lies in. One that was not seen before was there when the step began."""
        storage = tensor.untyped_storage()
        found = self._known.get(storage._cdata)
        return found if found is not None else self._new(storage, None)

    def knows(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._known

    def _new(self, storage: Any, birth: Optional[int]) -> Value:
        is_here = storage.device.type == self.device.type
        value = Value(len(self.values), storage._cdata, rounded(storage.nbytes()) if is_here else 0, birth)
        self.values.append(value)
        self._known[value.cdata] = value
        if birth is not None:
            self.meter.born(value.size)
        known, meter, ops = self._known, self.meter, self.ops

        def gone(_: Any) -> None:
            if known.get(value.cdata) is value:
                del known[value.cdata]
            value.death = len(ops)
            if birth is not None:
                meter.gone(value.size)

        self._watchers.append(weakref.ref(storage, gone))
        return value

    def _settle(self) -> None:
        """Notes which saved values only autograd holds by now."""
        if self._uses is None:
            return
        for number, value in list(self._pending.items()):
            if value.death < _LAST or self._uses(value.cdata) - 1 <= value.aliases:
                value.natural = len(self.ops)
                del self._pending[number]

    # ---- saved tensors ----

    def pack(self, tensor: Any, token: Any) -> Any:
        self.is_quiet = True
        try:
            if not is_plain(tensor) or not self.is_forward:
                return Held(self, None, tensor, token)
            value = self.value(tensor)
            if self.call is not None:
                self.call.packs.append((value.number, (tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())))
            if value.birth is None or (tensor.is_leaf and tensor.requires_grad):
                return Held(self, None, tensor, token)
            value.saved = True
            value.aliases += 1
            self._pending[value.number] = value
            return Held(self, value, tensor, token)
        finally:
            self.is_quiet = False

    def asked(self, value: Optional[Value]) -> None:
        if value is not None:
            now = len(self.ops)
            if value.need is None:
                value.need = now
                value.natural = min(value.natural, now)
                self._pending.pop(value.number, None)
            self.asks.append((now, value.number))

    # ---- what the modes see ----

    def enter_call(self, func: Any, args: Any, kwargs: Any) -> None:
        key = self.frames.count()
        if getattr(func, "__name__", "") == "__get__" and not isinstance(args[0] if args else None, torch.Tensor):
            return
        call = Call(len(self.calls), key, func)
        try:
            call.described = describe((args, kwargs))
            call.surroundings = surroundings(self.device.type)
            call.args = [self.value(tensor).number for tensor in tensors((args, kwargs))]
        except (Mystery, RuntimeError, NotImplementedError):
            call.described = None
        self.calls.append(call)
        self.call = call

    def leave_call(self, out: Any) -> None:
        call, self.call = self.call, None
        if call is not None and call.described is not None:
            try:
                call.outs = [self.value(tensor).number if is_plain(tensor) else -1 for tensor in tensors(out)]
            except (RuntimeError, NotImplementedError):
                call.described = None

    def operate(self, func: Any, args: Any, kwargs: Any) -> Any:
        given = tensors((args, kwargs))
        if func.is_view or any(type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided for tensor in given):
            return func(*args, **kwargs)
        for tensor in given:
            self.value(tensor)
        self._settle()
        op = Op(func, self.call if self.is_forward else None)
        before, most = self.meter.look()
        if self.ops:
            self.ops[-1].crest = max(self.ops[-1].crest, most)
        op.before = op.crest = before
        self.meter.start()
        out = func(*args, **kwargs)
        self.meter.stop()
        made = tensors(out)
        plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in made)
        op.nature = nature(func) if plain else Nature.OPAQUE
        number = len(self.ops)
        if plain:
            # Values of outputs in order, once for each storage.
            for position, tensor in enumerate(made):
                if not self.knows(tensor):
                    op.outs.append((position, self._new(tensor.untyped_storage(), number).number))
        written = [
            self.value(given_to)
            for given_to, formal in zip(args, func._schema.arguments)
            if isinstance(given_to, torch.Tensor) and formal.alias_info is not None and formal.alias_info.is_write
        ] + [self.value(tensor) for name, tensor in kwargs.items() if isinstance(tensor, torch.Tensor) and name == "out"]
        op.ins = [self.value(tensor).number for tensor in given]
        if not op.outs and not written:
            # It makes nothing: a view by another name, or a question.
            self.meter.forget()
            return out
        try:
            op.args = template(args, lambda tensor: self.value(tensor).number)
            op.kwargs = template(kwargs, lambda tensor: self.value(tensor).number)
        except Mystery:
            op.nature = Nature.OPAQUE
        for value in written:
            value.writers.append(number)
        if op.call is not None:
            op.offset = len(op.call.ops)
            op.call.ops.append(number)
        self.ops.append(op)
        return out

    def refs_of(self, op: Op) -> list[Any]:
        return refs((op.args, op.kwargs))


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recorder = self._recorder
        if recorder.is_quiet:
            return func(*args, **kwargs)
        recorder.enter_call(func, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except BaseException:
            recorder.call = None
            raise
        recorder.leave_call(out)
        return out


class _Operators(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._recorder.is_quiet:
            return func(*args, **(kwargs or {}))
        return self._recorder.operate(func, args, kwargs or {})
