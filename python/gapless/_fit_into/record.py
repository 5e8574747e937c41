"""Records one real training step: which operators ran, which storages they made, what autograd saved, when it asked
again, and the memory in use around each operator. The step computes what it always computes.

Two modes watch. The function mode sees the program's calls (torch.add, x.view, F.linear), whose arguments decide which
operators run: a later step may replay an operator only if its call has the same arguments but for the tensors' content.
The dispatch mode sees the operators. Both are on from the model's forward until the step ends.
"""

import weakref
from typing import Any, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .._offload_keeper import Kept
from .aside import Aside, has_alias
from .leaves import Mystery, describe, is_plain, refs, surroundings, template, tensors
from .meters import meter_of, rounded
from .operators import Nature, nature

_LAST = 1 << 30


class Value:
    """A storage that an operator of forward made, or that was there before (`birth` is None)."""

    __slots__ = ("birth", "cdata", "death", "held", "helds", "is_away", "natural", "need", "number", "saved", "size", "weak", "writers")

    def __init__(self, number: int, cdata: int, size: int, birth: Optional[int]) -> None:
        self.number, self.cdata, self.size, self.birth = number, cdata, size, birth
        self.writers: list[int] = []
        self.natural = self.death = _LAST
        self.need: Optional[int] = None
        self.saved = False
        # Saved tensors of it that autograd holds; and whether its bytes are on the host alone.
        self.held = 0
        self.helds: list[weakref.ref[Held]] = []
        self.is_away = False
        # The storage, while there is one and the step is recorded: what hears of its end, and what brings it.
        self.weak: Any = None


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

    __slots__ = ("__weakref__", "recorder", "saved", "token", "value")

    def __init__(self, recorder: "Recorder", value: Optional[Value], tensor: Any, token: Any) -> None:
        self.recorder, self.value, self.token = recorder, value, token
        # A tensor of its own even for leaves: the recorder counts who holds the storage.
        kept = tensor if value is None and tensor.is_leaf else tensor.detach()
        # A value from before the step is not followed to the host, so it stays.
        self.saved = Kept(kept) if recorder.aside is None or value is None else recorder.aside.pack(kept)
        if value is not None:
            value.held += 1
            value.helds.append(weakref.ref(self))

    def unpack(self) -> Any:
        self.recorder.is_quiet = True
        self.recorder.note_crest()
        try:
            tensor = self.saved.unpack()
            self.recorder.asked(self.value, tensor)
            return tensor
        finally:
            self.recorder.look()
            self.recorder.is_quiet = False

    def __del__(self) -> None:
        if self.value is not None:
            self.value.held -= 1
            self.recorder.let_go(self.value)


class Recorder:
    """One step. `frames` counts calls by scope; see scopes.py."""

    def __init__(self, device: Any, frames: Any, aside: Optional[Aside] = None) -> None:
        self.device, self.frames, self.aside = device, frames, aside
        self.meter = meter_of(device)
        self.ops: list[Op] = []
        self.values: list[Value] = []
        self.calls: list[Call] = []
        self.asks: list[tuple[int, int]] = []
        self.call: Optional[Call] = None
        self.is_quiet = False
        self.is_forward = False
        self._known: dict[int, Value] = {}
        # Bytes of values that are on the host alone; and those that the device would hold more at the last look.
        self._away = self._elsewhere = 0
        # Values that the latest operator read, until it is listed.
        self._reads: set[int] = set()
        self._pending: dict[int, Value] = {}
        self._uses = getattr(torch._C, "_storage_Use_Count", None)
        self._functions, self._operators = _Functions(self), _Operators(self)

    # ---- the step ----

    def begin_forward(self) -> None:
        """The operators are watched until the end of the step, the calls only in forward."""
        if not self.ops and not self.is_forward:
            self.look()
            self._operators.__enter__()
        self._functions.__enter__()
        self.is_forward = True

    def end_forward(self) -> None:
        self._functions.__exit__(None, None, None)
        self.is_forward = False

    def end(self) -> list[float]:
        """The step is over. Returns the microseconds of each operator."""
        self._operators.__exit__(None, None, None)
        self.note_crest()
        times: list[float] = self.meter.microseconds()
        last = len(self.ops)
        for value in self.values:
            value.death = min(value.death, last)
            value.natural = min(value.natural, value.death)
            # Nothing is noted from now on.
            value.weak = None
        self._pending.clear()
        return times

    def times(self, costs: list[float]) -> dict[str, float]:
        """Of a step with everything kept, from its operators alone: no such step could be timed."""
        forward = sum(cost for op, cost in zip(self.ops, costs) if op.call is not None)
        return {"step": sum(costs), "forward": forward, "thread": 0.0}

    def look(self) -> tuple[int, int]:
        """Bytes in use, and the most since the last look, as if nothing had moved to the host. Tensors move in pack()
        and unpack() alone, and a look before and after keeps that apart."""
        now, most = self.meter.look()
        # The meter of a device sees memory that is back before it was asked for.
        back = self.aside.ahead() if self.aside is not None and self.meter.sees_all else 0
        before, self._elsewhere = self._elsewhere, self._away - back
        return now + self._elsewhere, most + before

    def note_crest(self) -> None:
        """The most in use so far belongs to the latest operator."""
        most = self.look()[1]
        if self.ops:
            self.ops[-1].crest = max(self.ops[-1].crest, most)

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
        self._watch(value, storage)
        return value

    def _watch(self, value: Value, storage: Any) -> None:
        """The value's bytes are in `storage` from now on."""
        self._away -= value.size if value.is_away else 0
        value.cdata, value.is_away = storage._cdata, False
        self._known[value.cdata] = value
        if value.birth is not None:
            self.meter.born(value.size)
        known, meter, pending = self._known, self.meter, self._pending
        ops, reads = self.ops, self._reads

        def gone(_: Any) -> None:
            if known.get(value.cdata) is value:
                del known[value.cdata]
            if value.birth is not None:
                meter.gone(value.size)
            if value.held:
                # It moved to the host: only autograd held it, and perhaps the operator that runs.
                value.is_away = True
                self._away += value.size
                value.natural = min(value.natural, len(ops) + (value.number in reads))
                pending.pop(value.number, None)
            else:
                value.death = len(ops)

        value.weak = (weakref.ref(storage, gone), StorageWeakRef(storage))

    def let_go(self, value: Value) -> None:
        """Autograd has one saved tensor less. Bytes on the host have no storage whose end is heard of."""
        if value.is_away and not value.held:
            value.is_away = False
            self._away -= value.size
            value.death = min(value.death, len(self.ops))

    def _settle(self) -> None:
        """Notes which saved values only autograd holds by now."""
        if self._uses is None:
            return
        for number, value in list(self._pending.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(value.weak[1].cdata)
            # One use is this function's: a Python object without a tensor counts only if it was made from C++.
            helds = (ref() for ref in value.helds)
            if storage is None or self._uses(storage._cdata) - 1 <= sum(held is not None and has_alias(held.saved) for held in helds):
                value.natural = len(self.ops)
                del self._pending[number]

    # ---- saved tensors ----

    def pack(self, tensor: Any, token: Any) -> Any:
        self.is_quiet = True
        self.note_crest()
        try:
            if not is_plain(tensor) or not self.is_forward:
                return Held(self, None, tensor, token)
            value = self.value(tensor)
            if self.call is not None:
                self.call.packs.append((value.number, (tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())))
            if value.birth is None or (tensor.is_leaf and tensor.requires_grad):
                return Held(self, None, tensor, token)
            value.saved = True
            self._pending[value.number] = value
            return Held(self, value, tensor, token)
        finally:
            self.look()
            self.is_quiet = False

    def asked(self, value: Optional[Value], tensor: Any) -> None:
        if value is not None:
            if value.is_away:
                self._watch(value, tensor.untyped_storage())
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
        self._settle()
        self._reads.update(self.value(tensor).number for tensor in given)
        op = Op(func, self.call if self.is_forward else None)
        before, most = self.look()
        if self.ops:
            self.ops[-1].crest = max(self.ops[-1].crest, most)
        op.before = op.crest = before
        self.meter.start()
        out = func(*args, **kwargs)
        self.meter.stop(func, args, kwargs, out)
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
            self._reads.clear()
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
        self._reads.clear()
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
