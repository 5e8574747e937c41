"""Optimizers by the names that `gapless fit --optimizer` has."""

from functools import partial
from typing import Any, Callable

from .._errors import GaplessError

NAMES = ("adamw", "adamw-fused", "sgd", "sgd-momentum", "adafactor", "rmsprop", "adagrad", "lion", "muon")
_RATE = 1e-5


def optimizer(name: str, model: Any = None) -> "Callable[[Any], Any]":
    """Makes the optimizer of that name from parameters. Muon takes the matrices of the model's layers."""
    import torch

    makers: dict[str, Callable[[Any], Any]] = {
        "adamw": partial(torch.optim.AdamW, lr=_RATE),
        "adamw-fused": partial(torch.optim.AdamW, lr=_RATE, fused=True),
        "sgd": partial(torch.optim.SGD, lr=_RATE),
        "sgd-momentum": partial(torch.optim.SGD, lr=_RATE, momentum=0.9),
        "adafactor": partial(torch.optim.Adafactor, lr=_RATE),
        "rmsprop": partial(torch.optim.RMSprop, lr=_RATE),
        "adagrad": partial(torch.optim.Adagrad, lr=_RATE),
        "lion": _lion(torch),
        "muon": lambda parameters: _muon(torch, model, list(parameters)),
    }
    if name not in makers:
        told = "`adamw8bit` has kernels of its own" if name == "adamw8bit" else f"no optimizer is called {name!r}"
        raise GaplessError(f"{told}: use one of {', '.join(NAMES)}, or write a script and run `gapless estimate script.py`")
    return makers[name]


def _lion(torch: Any) -> Any:
    """Lion (Chen et al. 2023), as the scripts of `gapless fit --emit` have it: one state, and signs as updates."""

    class Lion(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": _RATE})

        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            self._change(parameter, group["lr"])

        def _change(self, parameter: Any, rate: float) -> None:
            state = self.state[parameter]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(parameter)
            momentum = state["momentum"]
            parameter.mul_(1 - rate * 0.01)
            parameter.add_(momentum.lerp(parameter.grad, 0.1).sign_(), alpha=-rate)
            momentum.lerp_(parameter.grad, 0.01)

    return Lion


def _muon(torch: Any, model: Any, parameters: "list[Any]") -> Any:
    """Muon on the matrices inside the model's lists of layers, AdamW on the rest."""
    layers = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)] if model is not None else []
    inner = {id(parameter) for part in layers for parameter in part.parameters() if parameter.dim() == 2}
    matrices = [parameter for parameter in parameters if id(parameter) in inner]
    if not matrices:
        raise GaplessError("muon updates the matrices of layers, and this model has none: use another --optimizer")
    rest = [parameter for parameter in parameters if id(parameter) not in inner]
    return _Several(torch.optim.Muon(matrices, lr=_RATE), torch.optim.AdamW(rest, lr=_RATE))


class _Several:
    """Optimizers that step together."""

    def __init__(self, *parts: Any) -> None:
        self._parts = parts

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._parts:
            part.zero_grad(set_to_none=set_to_none)
