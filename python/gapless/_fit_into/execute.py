"""Runs a plan: values that it drops are made again when backward asks for them.

Only calls that the plan names are looked at. Each is checked by itself: the same function, the same constants, the same
shapes, types, strides and surroundings. Then the same operators run, so each can be run again with the tensors that
this call was given. A source that is dropped too is recognised by its storage and version; a source that is not
recognised is simply held. So a program that does something else than it did when it was recorded keeps more memory, and
never gets other gradients.

A Cell is a value that may be made again. Saved tensors and later calls hold it, it holds the Run of its call, and that
holds the sources. So everything is freed when autograd lets go.
"""

import weakref
from typing import Any, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from .._offload_keeper import check_version
from .aside import Aside, Waiting
from .leaves import Ref, fill, is_plain, over, tensors
from .scopes import Frame
from .tables import CallPlan, OpPlan


def keep(tensor: Any, token: Any) -> tuple[Any, int, Any]:
    """A saved tensor that stays. Detached, because a node that saves its own output would keep itself alive."""
    return (tensor if tensor.is_leaf else tensor.detach(), tensor._version, token)


def unpack(saved: Any) -> Any:
    """The tensor of what pack() returned: a tuple from keep(), or an object that knows."""
    if type(saved) is tuple:
        tensor, version, _ = saved
        if tensor._version != version:
            check_version(tensor, version)
        return tensor
    return saved.unpack()


class Cell:
    """A value of this forward that can be made again, and once it was, its tensor."""

    __slots__ = ("__weakref__", "run", "tensor", "value", "version")

    def __init__(self, run: "Run", value: int, version: int) -> None:
        self.run, self.value, self.version = run, value, version
        self.tensor: Any = None

    def bring(self) -> Any:
        """The tensor. Sources that are missing are made first, by a list and not by recursion: chains may be long."""
        todo = [self]
        while todo:
            cell = todo[-1]
            missing = cell.run.missing(cell.value) if cell.tensor is None else ()
            if missing:
                todo.extend(missing)
                continue
            if cell.tensor is None:
                cell.run.make(cell.value)
            todo.pop()
        return self.tensor


class Dropped:
    """A saved tensor that is made again."""

    __slots__ = ("cell", "dtype", "offset", "owner", "size", "stride", "token")

    def __init__(self, cell: Cell, tensor: Any, owner: "Executor", token: Any) -> None:
        self.cell, self.owner, self.token = cell, owner, token
        self.size, self.stride, self.offset, self.dtype = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype

    def unpack(self) -> Any:
        base = self.cell.tensor
        if base is None:
            base = self.owner.make(self.cell)
        with torch.no_grad():
            return over(base, self)


class Run:
    """A planned call of this forward: the sources of its operators, and its cells while something holds them."""

    __slots__ = ("cells", "inner", "plan", "sources", "state", "versions")

    def __init__(self, plan: CallPlan) -> None:
        self.plan = plan
        # Value to a tensor, or to the cell that makes it.
        self.sources: dict[int, Any] = {}
        self.versions: list[tuple[Any, int]] = []
        self.cells: dict[int, Any] = {}
        # Values between two operators of the call.
        self.inner: dict[int, Any] = {}
        self.state: Any = None

    def make(self, value: int) -> None:
        for tensor, version in self.versions:
            check_version(tensor, version)
        self._run(self.plan.makers[value])
        for ref in self.cells.values():
            cell = ref()
            if cell is not None and cell.tensor is None:
                return
        # Nothing more can be asked of this call.
        self.sources, self.versions, self.inner = {}, [], {}

    def missing(self, value: int) -> list[Cell]:
        """Cells of other calls that have to be made before a value of this one."""
        found, todo, seen = [], [value], {value}
        while todo:
            for other in self.plan.makers[todo.pop()].reads:
                source = self.sources.get(other)
                if source is None:
                    if other not in seen and other not in self.inner:
                        seen.add(other)
                        todo.append(other)
                elif type(source) is Cell and source.tensor is None:
                    found.append(source)
        return found

    def _find(self, ref: Ref) -> Any:
        value = ref.value
        found = self.sources.get(value)
        if found is None:
            found = self.inner.get(value)
        if found is None:
            weak = self.cells.get(value)
            cell = weak() if weak is not None else None
            if cell is not None and cell.tensor is not None:
                found = cell.tensor
            else:
                self._run(self.plan.makers[value])
                found = cell.tensor if cell is not None else self.inner[value]
        elif type(found) is Cell:
            found = found.bring()
        return over(found, ref)

    def _run(self, op: OpPlan) -> None:
        args, kwargs = fill(op.args, self._find), fill(op.kwargs, self._find)
        out = op.func(*args, **kwargs) if not op.is_random else self._replay_random(op, args, kwargs)
        flat = tensors(out)
        for position, value in op.outs:
            weak = self.cells.get(value)
            cell = weak() if weak is not None else None
            if cell is not None:
                if cell.tensor is None:
                    cell.tensor = flat[position]
            elif weak is None:
                self.inner[value] = flat[position]

    def _replay_random(self, op: OpPlan, args: Any, kwargs: Any) -> Any:
        generator, state = self.state
        now = generator.get_state()
        generator.set_state(state)
        try:
            return op.func(*args, **kwargs)
        finally:
            generator.set_state(now)


class Executor:
    """The plan of one kind of step on one device. `aside` takes what stays, if the plan does not fit."""

    def __init__(self, device: Any, plans: dict[tuple[Any, ...], dict[int, CallPlan]], aside: Optional[Aside] = None) -> None:
        self.device, self.plans, self._aside = device, plans, aside
        # The scope that is entered now.
        self.frame: Optional[Frame] = None
        self.token: Any = None
        self.is_quiet = False
        self.missed = self.dropped = self.made = 0
        self._run: Optional[Run] = None
        self._packs = 0
        self._cells: dict[int, tuple[Cell, Any]] = {}
        self._mode = _Calls(self)
        self._is_watching = False
        self._stream: Any = None
        self._home: Optional[int] = None

    # ---- forward ----

    def begin(self, token: Any) -> None:
        self.token, self.is_quiet = token, False
        if self.device.type == "cuda":
            self._stream = torch.cuda.current_stream(self.device)
            self._home = torch._C._cuda_getCurrentRawStream(self.device.index)

    def enter(self, frame: Frame) -> None:
        """A scope is entered. Its calls are watched from here on if some are planned."""
        if frame.plans and not self._is_watching:
            self._is_watching = frame.has_mode = True
            self._mode.__enter__()
        self.frame = frame

    def leave(self, frame: Frame, outer: Optional[Frame]) -> None:
        """The scope that was entered last is left: modes nest as scopes do."""
        if frame.has_mode:
            self._is_watching = False
            self._mode.__exit__(None, None, None)
        self.frame = outer

    def end(self) -> None:
        self._cells.clear()
        self._run = self.token = None

    def planned(self, plan: CallPlan, func: Any, args: Any, kwargs: Any) -> Any:
        if not plan.matches(func, args, kwargs):
            self.missed += 1
            return func(*args, **kwargs)
        given = tensors((args, kwargs))
        run = Run(plan)
        for position, value, is_made in plan.args:
            tensor = given[position]
            cell = self._cell(tensor) if is_made else None
            if cell is None:
                run.sources[value] = tensor
                run.versions.append((tensor, tensor._version))
            else:
                run.sources[value] = cell
        if plan.has_random:
            generator = torch.cuda.default_generators[self.device.index] if self.device.type == "cuda" else torch.default_generator
            run.state = (generator, generator.get_state())
        self._run, self._packs = run, 0
        try:
            out = func(*args, **kwargs)
        finally:
            self._run = None
        if plan.outs:
            flat = tensors(out)
            for position, value in plan.outs:
                if position < len(flat) and self._cell(flat[position]) is None:
                    self._register(flat[position], value, run)
        return out

    def _cell(self, tensor: Any) -> Optional[Cell]:
        """The cell of a tensor's storage, if its bytes are still what the cell makes."""
        found = self._cells.get(tensor.untyped_storage()._cdata)
        return found[0] if found is not None and found[0].version == tensor._version else None

    def _register(self, tensor: Any, value: int, run: Run) -> Cell:
        storage = tensor.untyped_storage()
        cell = Cell(run, value, tensor._version)
        run.cells[value] = weakref.ref(cell)
        # The weak reference keeps the storage's address from being used for another one.
        self._cells[storage._cdata] = (cell, StorageWeakRef(storage))
        return cell

    def pack(self, tensor: Any) -> Any:
        # Questions to the tensor from here are no calls of the program.
        self.is_quiet = True
        run = self._run
        entry = None
        if run is not None:
            entry = run.plan.packs.get(self._packs)
            self._packs += 1
        saved: Any = None
        if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
            found = self._cells.get(tensor.untyped_storage()._cdata) if self._cells else None
            if found is not None:
                cell = found[0]
                if cell.version == tensor._version and is_plain(tensor):
                    self.dropped += 1
                    saved = Dropped(cell, tensor, self, self.token)
            elif entry is not None and run is not None:
                saved = self._save(tensor, run, entry)
        if saved is None and self._aside is not None:
            saved = Waiting(self._aside.pack(tensor), self.token)
        elif saved is None:
            saved = (tensor if tensor.is_leaf else tensor.detach(), tensor._version, self.token)
        self.is_quiet = False
        return saved

    def _save(self, tensor: Any, run: Run, entry: tuple[int, Any]) -> Any:
        """A tensor that is first seen when autograd saves it, within a planned call."""
        value, geometry = entry
        if not is_plain(tensor) or geometry != (tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()):
            return None
        if value in run.plan.kept:
            kept = keep(tensor, self.token)
            run.sources[value] = kept[0]
            run.versions.append(kept[:2])
            return kept
        self.dropped += 1
        return Dropped(self._register(tensor, value, run), tensor, self, self.token)

    # ---- backward ----

    def make(self, cell: Cell) -> Any:
        self.made += 1
        with torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
            if self._home is None or self._home == torch._C._cuda_getCurrentRawStream(self.device.index):
                return cell.bring()
            return self._make_at_home(cell)

    def _make_at_home(self, cell: Cell) -> Any:
        """On the stream of forward, where the sources are ready; the stream that asked waits."""
        now = torch.cuda.current_stream(self.device)
        with torch.cuda.stream(self._stream):
            base = cell.bring()
        now.wait_stream(self._stream)
        base.record_stream(now)
        return base


class _Calls(TorchFunctionMode):  # type: ignore[misc]
    """Sees the program's calls in forward. It runs for each of them, so it is short."""

    def __init__(self, executor: Executor) -> None:
        super().__init__()
        self._executor = executor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        executor = self._executor
        frame = executor.frame
        if executor.is_quiet or frame is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        n = frame.n
        frame.n = n + 1
        if n in frame.plans:
            return executor.planned(frame.plans[n], func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)
