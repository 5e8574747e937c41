"""gapless.fit_into(model, budget): the first steps are measured and recorded, a plan is made, and later steps follow
it.
"""

import json
import threading
import warnings
import weakref
from typing import Any, Callable, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .. import _options
from .._errors import GaplessError, GaplessWarning, OptionError
from . import meters
from .aside import Aside, Waiting, aside_of
from .execute import Executor, keep, unpack
from .leaves import Mystery, describe
from .meters import StepClock
from .record import Recorder
from .scopes import Frames, blocks_of
from .steps import Step, ask
from .tables import tables

# Steps of a kind before it is timed, so that libraries have started and optimizers have their states.
_WARM = 1
# Microseconds to run one operator again, beside its time on the device.
_LAUNCH_US = 4.0


class Kind:
    """Steps that begin alike: where they are between first seen and planned."""

    def __init__(self) -> None:
        self.seen = 0
        self.step: Optional[Step] = None
        self.asked: Any = None
        # By budget.
        self.answers: dict[int, Any] = {}
        self.executors: dict[int, Executor] = {}
        self.problem: Optional[str] = None
        self.thread: Optional[threading.Thread] = None
        self.times: dict[str, float] = {}


class Token:
    """Alive while saved tensors of a forward are."""

    __slots__ = ("__weakref__",)


class FitInto:
    """A model that trains in a budget. Made by gapless.fit_into()."""

    def __init__(self, model: Any, budget: Any, min_size: Any = "1MiB", wait: bool = False, time_limit: float = 3.0, told: Any = None) -> None:
        # Hears of each plan when it is made.
        self._told = told
        self.budget, self.min_size = _bytes("budget", budget), _bytes("min_size", min_size)
        self._wait, self._seconds = wait, time_limit
        self._is_paused = False
        self.kinds: dict[Any, Kind] = {}
        self._model = weakref.ref(model)
        self._device = _device_of(model)
        self._frames = Frames()
        self._live: Optional[weakref.ref[Token]] = None
        self._forward = 0
        self._state: Any = None
        self._recording: Optional[tuple[Kind, Recorder]] = None
        # The kind, its clock, and the bytes that had moved to the host before.
        self._timing: Optional[tuple[Kind, StepClock, int]] = None
        self._aside: Optional[Aside] = None
        self._lay_aside()
        self._hooks: Any = None
        self._handles = [
            model.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True),
            model.register_forward_hook(self._after, always_call=True),
            register_optimizer_step_pre_hook(self._stepped),
        ]
        for path, block in blocks_of(model).items():
            self._handles.append(block.register_forward_pre_hook(self._enter(path), prepend=True))
            self._handles.append(block.register_forward_hook(self._leave(path), always_call=True))

    # ---- what the user asks ----

    def explain(self) -> str:
        """The plan in words: peak, time, bound, what is dropped and what stays."""
        answer = self.answer()
        if answer is not None:
            return str(answer["text"])
        problems = [kind.problem for kind in self.kinds.values() if kind.problem]
        if problems:
            return f"no plan: {problems[0]}"
        seen = max((kind.seen for kind in self.kinds.values()), default=0)
        return f"no step was recorded so far: steps with gradients seen: {seen}; the third of a kind is recorded"

    def save(self, path: Any) -> None:
        """Writes the recorded step for `gapless fit-into`."""
        recorded = [kind for kind in self.kinds.values() if kind.asked is not None]
        if not recorded:
            raise GaplessError("no step was recorded so far: run three steps with gradients first")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(max(recorded, key=lambda kind: kind.seen).asked, file)

    def answer(self) -> Any:
        """The plan of the kind of step that was seen most, as `gapless fit-into --format json` prints it; or None."""
        planned = [kind for kind in self.kinds.values() if self.budget in kind.answers]
        return max(planned, key=lambda kind: kind.seen).answers[self.budget] if planned else None

    def change(self, budget: Any) -> None:
        """Another budget. Steps that were recorded are planned again, and not recorded again."""
        self.budget = _bytes("budget", budget)
        self._lay_aside()
        for kind in self.kinds.values():
            if kind.step is not None and self.budget not in kind.answers:
                self._start(kind)

    def _lay_aside(self) -> None:
        """For steps without a plan, and for plans that do not fit."""
        self._aside = aside_of(self._device, self.budget, self.min_size)

    def pause(self) -> None:
        """Steps run as without a plan until resume()."""
        self._finish()
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    def stats(self) -> dict[str, int]:
        """Kinds of steps, how many have a plan, tensors dropped and made again, and calls that were not as recorded."""
        executors = [executor for kind in self.kinds.values() for executor in kind.executors.values()]
        return {
            "kinds": len(self.kinds),
            "planned": len(executors),
            "dropped": sum(executor.dropped for executor in executors),
            "made": sum(executor.made for executor in executors),
            "missed": sum(executor.missed for executor in executors),
        }

    def remove(self) -> None:
        """The model is as it was before."""
        self._finish()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def wait(self) -> None:
        """Waits for plans that are being made."""
        for kind in self.kinds.values():
            if kind.thread is not None:
                kind.thread.join()

    # ---- the step ----

    def _before(self, module: Any, args: Any, kwargs: Any) -> None:
        if self._state is not None or self._is_paused or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return
        if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return
        if self._live is None or self._live() is None:
            self._finish()
            self._forward = 0
            self._kind = self._kind_of(module, args, kwargs)
            self._prepare(self._kind)
        else:
            self._forward += 1
        token = Token()
        self._live = weakref.ref(token)
        executor = self._kind.executors.get(self.budget)
        if executor is not None and not executor.plans:
            # Everything fits: nothing to watch.
            return
        pack: Callable[[Any], Any]
        if self._recording is not None:
            recorder = self._recording[1]
            self._frames.begin(self._forward, {})

            def pack(tensor: Any) -> Any:
                return recorder.pack(tensor, token)

            runner: Any = recorder
        elif executor is not None:
            runner = executor
            self._frames.begin(self._forward, runner.plans, runner)
            runner.begin(token)
            pack = runner.pack
        else:
            runner = pack = _Plain(token, self._aside)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        hooks.__enter__()
        self._state = (runner, hooks)
        self._frames.enter("")
        if self._recording is not None:
            runner.begin_forward()

    def _after(self, module: Any, args: Any, out: Any) -> None:
        if self._state is None:
            return
        runner, hooks = self._state
        self._state = None
        if isinstance(runner, Recorder):
            runner.end_forward()
        if self._timing is not None:
            self._timing[1].end_forward()
        self._frames.leave("")
        if isinstance(runner, Executor):
            runner.end()
        hooks.__exit__(None, None, None)

    def _enter(self, path: str) -> Callable[..., None]:
        def enter(module: Any, args: Any) -> None:
            if self._state is not None:
                self._frames.enter(path)

        return enter

    def _leave(self, path: str) -> Callable[..., None]:
        def leave(module: Any, args: Any, out: Any) -> None:
            if self._state is not None:
                self._frames.leave(path)

        return leave

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._live is None or self._live() is None:
            self._finish()

    # ---- recordings and plans ----

    def _kind_of(self, module: Any, args: Any, kwargs: Any) -> Kind:
        has_gradients = any(parameter.grad is not None for parameter in module.parameters())
        try:
            key: Any = (describe((args, kwargs)), module.training, has_gradients, torch.is_autocast_enabled(self._device.type))
            hash(key)
        except (Mystery, TypeError):
            key = (_shapes((args, kwargs)), module.training, has_gradients)
        return self.kinds.setdefault(key, Kind())

    def _prepare(self, kind: Kind) -> None:
        kind.seen += 1
        if kind.problem is not None or kind.step is not None:
            return
        if kind.seen == _WARM + 1:
            self._timing = (kind, StepClock(self._device), self._moved())
        elif kind.seen > _WARM + 1:
            self._recording = (kind, Recorder(self._device, self._frames, self._aside))

    def _moved(self) -> int:
        return self._aside.moved() if self._aside is not None else 0

    def _finish(self) -> None:
        """A step ended: its time is known, or its recording complete."""
        if self._timing is not None:
            kind, clock, moved = self._timing
            self._timing = None
            times = clock.end()
            # The time of a step that waits for copies says nothing of one with everything kept.
            kind.times = times if self._moved() == moved and not meters.is_modelled else {}
        if self._recording is not None:
            kind, recorder = self._recording
            self._recording = None
            costs = recorder.end()
            kind.step = Step(recorder, costs, kind.times or recorder.times(costs), self.min_size, _LAUNCH_US)
            kind.asked = kind.step.to_json()
            self._start(kind)

    def _start(self, kind: Kind) -> None:
        kind.thread = threading.Thread(target=self._plan, args=(kind, self.budget), name="gapless-fit-into", daemon=True)
        kind.thread.start()
        if self._wait:
            kind.thread.join()

    def _plan(self, kind: Kind, budget: int) -> None:
        try:
            answer = ask(kind.asked, budget, self._seconds)
            if kind.step is not None:
                executor = Executor(self._device, tables(kind.step, answer, self._device.type), None if answer["fits"] else self._aside)
                kind.answers[budget], kind.executors[budget] = answer, executor
                if self._told is not None:
                    self._told(answer)
        except Exception as error:
            kind.problem = str(error)
            warnings.warn(f"fit_into has no plan, and every tensor stays on the device: {error}", GaplessWarning, stacklevel=2)


class _Plain:
    """Keeps saved tensors, on the host if the device has no room, and knows when the last is gone."""

    def __init__(self, token: Any, aside: Optional[Aside]) -> None:
        self._token, self._aside = token, aside

    def __call__(self, tensor: Any) -> Any:
        return keep(tensor, self._token) if self._aside is None else Waiting(self._aside.pack(tensor), self._token)


def _shapes(tree: Any) -> Any:
    from .leaves import tensors

    return tuple((tensor.size(), tensor.dtype) for tensor in tensors(tree))


def _device_of(model: Any) -> Any:
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        raise GaplessError(f"the model is on {len(devices)} devices ({', '.join(sorted(map(str, devices)))}): fit_into plans for one")
    device = next(iter(devices), torch.device("cpu"))
    return torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device


def _bytes(name: str, value: Any) -> int:
    try:
        return _options.parse_bytes(value)
    except ValueError as error:
        raise OptionError(f"{name}={value} is not {error}") from None
