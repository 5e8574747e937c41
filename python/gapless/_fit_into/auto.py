"""`gapless run --train-in 20GiB`: models of a program that knows nothing of budgets.

A module that the program calls by itself, with gradients, in training mode, and with parameters of its own on a card,
is fitted into the budget when it is first called. Modules are looked for until the optimizers have made some steps:
looking costs each call of a module a little.
"""

import sys
import threading
import warnings
import weakref
from typing import Any, Optional

from .._errors import GaplessError, GaplessWarning
from .._stats import size_text

# Steps of optimizers in which the models of a program are found.
_STEPS = 8
# A program that calls more modules than this by themselves calls the parts of one model.
_MOST = 8


class Watch:
    """Finds the models of a program."""

    def __init__(self, torch: Any, budget: int, wait: bool = False, tell: Any = None) -> None:
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._torch, self.budget, self._wait = torch, budget, wait
        # Hears of each plan, with the name of its model.
        self._tell = tell or _print
        self._local = threading.local()
        self._known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._steps = 0
        self._handles = [
            register_module_forward_pre_hook(self._before),
            register_module_forward_hook(self._after, always_call=True),
            register_optimizer_step_post_hook(self._stepped),
        ]

    def fitted(self) -> list[Any]:
        """The result of gapless.fit_into() for each model."""
        return [one for one in self._known.values() if one is not None]

    def _before(self, module: Any, args: Any) -> None:
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        if depth == 0 and module not in self._known and self._trains(module):
            self._fit(module, args)

    def _after(self, module: Any, args: Any, out: Any) -> None:
        self._local.depth = max(0, getattr(self._local, "depth", 1) - 1)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._steps += 1
        if self._steps == _STEPS:
            self.end()

    def end(self) -> None:
        """No more models are looked for."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _trains(self, module: Any) -> bool:
        torch = self._torch
        if not module.training or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return False
        # A checkpoint computes again, in backward.
        if torch._C._current_graph_task_id() >= 0:
            return False
        return any(parameter.requires_grad and parameter.is_cuda for parameter in module.parameters())

    def _fit(self, module: Any, args: Any) -> None:
        from .api import FitInto

        name = type(module).__name__
        if len(self._known) == _MOST:
            self._known[module] = None
            told = f"{name} and modules after it keep their tensors: the program calls more than {_MOST} modules by themselves"
            warnings.warn(f"{told}; gapless.fit_into(model, budget) plans the one that you name", GaplessWarning, stacklevel=5)
            return
        self._known[module] = None
        try:
            fitted = FitInto(module, self.budget, wait=self._wait, told=lambda answer: self._tell(name, answer))
        except GaplessError as error:
            warnings.warn(f"{name} keeps its tensors: {error}", GaplessWarning, stacklevel=5)
            return
        self._known[module] = fitted
        # Its own hooks begin with the next call.
        fitted._before(module, args, {})


_watch: Optional[Watch] = None


def install(torch: Any, budget: int, wait: bool = False, tell: Any = None) -> Watch:
    global _watch
    if _watch is not None:
        _watch.end()
    _watch = Watch(torch, budget, wait, tell)
    return _watch


def fitted() -> list[Any]:
    """The result of gapless.fit_into() for each model of the program."""
    return _watch.fitted() if _watch is not None else []


def _print(name: str, answer: Any) -> None:
    """A line for each plan that takes over, as the program itself would print none."""
    print(f"gapless: {name}: {told(answer)}", file=sys.stderr)


def told(answer: Any) -> str:
    kept, peak = answer["kept"], answer["peak"]
    if peak >= kept["peak"]:
        return f"a step fits into {size_text(answer['budget'])} as it is: {size_text(kept['peak'])}"
    words = f"a step takes {size_text(peak)} in place of {size_text(kept['peak'])}"
    if kept["time_us"] > 0:
        words += f", and {100 * (answer['time_us'] / kept['time_us'] - 1):.1f} % more time"
    if not answer["fits"]:
        words += f"; that is more than {size_text(answer['budget'])}: the rest waits on the host, or a smaller batch fits"
    return words
