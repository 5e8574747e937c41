"""gapless.stream(): a model runs as if all of it were on the card, within a budget for its weights.

stream = gapless.stream(model, budget="8GiB")
model(x)
print(stream)            # what stays, what streams, and how near to the least time a pass is
stream.stop()            # the model is as it was
"""

import sys
import weakref
from collections.abc import Mapping
from typing import Any, Union

from .. import _options
from .._errors import GaplessError, OptionError
from . import calls, ending, generation, hooks, quiet
from .items import Found, Item, parts_of, places_of
from .runner import Runner
from .shown import shown

# Smaller weights stay on the card, unless all of them together need more than an eighth of the budget.
_SMALL = 1 << 20

_streams: "weakref.WeakSet[Stream]" = weakref.WeakSet()


class Stream:
    """Models whose weights stream. `stop()`, or the end of a with block, gives them back as they were."""

    def __init__(self, card: Any, models: list[tuple[str, Any]], budget: int, is_ahead: bool = False) -> None:
        self._card, self.budget = card, budget
        self._runner = Runner(card, budget, is_ahead)
        self.weights = 0
        self._take(models)
        _streams.add(self)
        _listen()

    def add(self, model: Any, name: str = "") -> None:
        """Another model that shares the budget."""
        self._take([(name, model)])

    def _take(self, models: list[tuple[str, Any]]) -> None:
        card, runner = self._card, self._runner
        torch = card.torch
        for label, model in models:
            for path, module in model.named_modules():
                if calls.place_of(module) is not None:
                    raise GaplessError(f"{label or path or type(model).__name__} is streamed already: call stop() of its stream first")
        hooks.remove(models)
        generation.look()
        with torch.no_grad(), torch.inference_mode(False):
            _to_card(torch, models, card.device)
            found = Found(torch, models, first=len(runner.items))
            places = places_of(torch, models, found, first=len(runner.places))
            for _, place in places:
                place.runner = runner
            try:
                for item in found.items:
                    _move(card, item)
                room = self.budget // 8 - runner.fixed_bytes()
                runner.add(found.items, [place for _, place in places], _fixed(found.items, room))
                calls.add(torch, places)
            except BaseException:
                # No memory, or an interrupt: all of the model is where it was.
                calls.forget(places)
                ending.give_back(runner, found.items)
                raise
        self.weights += sum(item.nbytes for item in found.items)

    def stats(self) -> dict[str, Any]:
        """Figures in bytes, counts and seconds; docs/streaming.md says what each one means."""
        runner = self._runner
        with runner._lock:
            if runner.has_dead and not runner._is_changing:
                with quiet.of(self._card.torch):
                    runner._change()
                    runner.sweep()
                    runner._is_changing = False
            runner.planner.learn(self._card)
            account = runner.account
            account.look()
            resident = sum(item.nbytes for item in runner.items if item.is_resident)
            found: dict[str, Any] = {
                "budget": account.budget,
                "weights": sum(item.nbytes for item in runner.items if item.held) or self.weights,
                "host_bytes": sum(item.nbytes for item in runner.items if item.host is not None),
                "on_card": account.used,
                "peak": account.peak,
                "resident": resident,
                "escaped": account.escaped,
                **runner.counts,
                **runner.planner.last,
            }
            if runner.planner.speed is not None:
                found["link_speed"] = runner.planner.speed
            return found

    def stop(self) -> None:
        """Gives the models their weights back, on the device that they came from. Another call has no effect."""
        ending.stop(self._runner)
        calls.remove(self._runner)
        _streams.discard(self)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: Any) -> None:
        self.stop()

    def __reduce__(self) -> Any:
        raise GaplessError("a stream cannot be copied or saved: copy or save its model, which gives an ordinary model")

    def __str__(self) -> str:
        return shown(self.stats())

    def __repr__(self) -> str:
        return f"<gapless.stream of {self.weights} bytes within {self.budget}>"


def stream(model: Any, budget: Union[int, str], device: Any = None, between: bool = False) -> Stream:
    """Lets the weights of a model stream to the card, so that at most `budget` bytes of weights are there at a time.

    model    a torch.nn.Module, on the CPU or on the card; several, as a list or a dict, which share the budget; or a
             pipeline with `components`, as diffusers has them
    budget   bytes for weights on the card, such as "8GiB"; activations come on top
    device   the card; by default the current one
    between  True: copies for the next pass begin before this one ends, and routed experts stay for it. Do not write to
             weights by `.data` between passes then; every other way of writing is noticed

    The model's parameters are tensors of the card from now on: give it inputs on the card. Results are bit for bit
    those of the model with all of its weights on the card. The first pass records the order in which weights are used;
    later ones copy ahead in that order, from pinned host memory.
    """
    from .. import _memory, _torch
    from .card import Card

    torch = _torch.import_torch()
    try:
        nbytes = _options.positive_bytes(budget)
    except ValueError as error:
        raise OptionError(f"budget={budget} is not {error}") from None
    models = _models(torch, model)
    library = _memory._started()
    torch.cuda.init()
    index = int(torch.cuda._utils._get_device_index(device, optional=True))
    return Stream(Card(torch, library, index), models, nbytes, between)


_handler: Any = None


def _listen() -> None:
    """Makes the allocator ask for weights that are not in use before it fails a request, if it is ours."""
    global _handler
    package = sys.modules["gapless"]
    if _handler is None and hasattr(package, "on_pressure"):
        _handler = package.on_pressure(_pressed) or _pressed


def _pressed(pressure: Any) -> int:
    missing = getattr(pressure, "missing", 0) or getattr(pressure, "requested", 0)
    freed = 0
    for one in list(_streams):
        if freed < missing and one._card.device.index == getattr(pressure, "device", one._card.device.index):
            freed += ending.relieve(one._runner, missing - freed)
    return freed


def _models(torch: Any, given: Any) -> list[tuple[str, Any]]:
    """The modules that were given, each with a name."""
    if isinstance(given, torch.nn.Module):
        return [("", given)]
    if not isinstance(given, (Mapping, list, tuple)) and isinstance(getattr(given, "components", None), Mapping):
        given = given.components
    if isinstance(given, (list, tuple)):
        wrong = next((one for one in given if not isinstance(one, torch.nn.Module)), None)
        if wrong is not None:
            raise OptionError(f"a {type(wrong).__name__} cannot be streamed: pass modules (torch.nn.Module)")
        given = {f"{type(one).__name__}#{number}": one for number, one in enumerate(given)}
    found = [(str(name), one) for name, one in given.items() if isinstance(one, torch.nn.Module)] if isinstance(given, Mapping) else []
    if not found:
        raise OptionError(f"a {type(given).__name__} cannot be streamed: pass a torch.nn.Module, several in a list or a dict, or a pipeline with components")
    return found


def _fixed(items: list[Item], room: int) -> frozenset[int]:
    """Items that are too small to move, as far as there is room for all of their size."""
    small = _SMALL
    while small >= 256:
        found = [item for item in items if item.nbytes < small]
        if sum(item.nbytes for item in found) <= room:
            return frozenset(item.number for item in found)
        small //= 4
    return frozenset()


def _to_card(torch: Any, models: list[tuple[str, Any]], device: Any) -> None:
    """Tensors that are made of several know their device: these are moved as a whole, one module at a time. Their parts
    are then streamed."""
    for _, model in models:
        for module in model.modules():
            tensors = [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]
            if any(type(tensor) not in (torch.nn.Parameter, torch.Tensor) or parts_of(torch, tensor) != [tensor] for tensor in tensors):
                if any(tensor.device != device for tensor in tensors):
                    module._apply(lambda tensor: tensor.to(device), recurse=False)


def _move(card: Any, item: Item) -> None:
    """The bytes of an item go to pinned memory, and its tensors show them there."""
    torch = card.torch
    first = item.held[0]
    width = first.tensor.element_size()
    start = (first.tensor.storage_offset() - first.offset) * width
    source = torch.empty(0, dtype=torch.uint8, device=item.origin).set_(first.tensor.untyped_storage(), start, (item.nbytes,), (1,))
    host = card.host(item.nbytes)
    host.copy_(source)
    view = card.view(host)
    for held in item.held:
        held.on_host = card.tensor(view, held)
    item.view = view
    item.host = host
    for held in item.held:
        held.tensor.data = held.on_host
