"""to(), cuda(), cpu(), half() and their relatives on models that are streamed: all of them go through Module._apply.

A conversion to another type is done on the host, one item at a time, and the weights go on streaming. Weights that
move to another device leave the stream, and are ordinary tensors there. cuda() finds all weights on the card already.
"""

import functools
import threading
from typing import Any

from . import quiet
from .items import Item, parts_of


class _Local(threading.local):
    def __init__(self) -> None:
        self.is_inside = False


_local = _Local()
# Takes a model that is not streamed and is moved: auto.py.
taker: Any = None
_plain: Any = None


def plain(module: Any, fn: Any) -> None:
    """Module._apply, and no stream hears of it."""
    before, _local.is_inside = _local.is_inside, True
    try:
        _plain(module, fn)
    finally:
        _local.is_inside = before


def wrap(torch: Any, original: Any, place_of: Any) -> Any:
    """Module._apply that knows of streams."""
    global _plain
    _plain = original

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        if not _local.is_inside and not torch.compiler.is_compiling():
            if any(place_of(module) is not None for module in self.modules()):
                for runner, items in _items_of(torch, self, place_of, recurse):
                    _move(torch, runner, items, fn)
            elif taker is not None and recurse and taker(self, fn):
                return self
        before, _local.is_inside = _local.is_inside, True
        try:
            return original(self, fn, recurse) if not recurse else original(self, fn)
        finally:
            _local.is_inside = before

    return functools.update_wrapper(apply, original)


def _items_of(torch: Any, module: Any, place_of: Any, recurse: bool) -> list[tuple[Any, list[Item]]]:
    """The streamed items of a module, by their runner."""
    found: dict[int, tuple[Any, dict[int, Item]]] = {}
    for below in module.modules() if recurse else (module,):
        place = place_of(below)
        if place is None:
            continue
        _, items = found.setdefault(id(place.runner), (place.runner, {}))
        own = {id(part) for tensor in (*below._parameters.values(), *below._buffers.values()) if tensor is not None for part in parts_of(torch, tensor)}
        for item in place.items:
            if any(id(held.tensor) in own for held in item.held):
                items[item.number] = item
    return [(runner, list(items.values())) for runner, items in found.values()]


def _move(torch: Any, runner: Any, items: list[Item], fn: Any) -> None:
    device = runner.card.device
    outcomes: dict[Any, Any] = {}
    with torch.no_grad():
        for dtype in {held.dtype for item in items for held in item.held}:
            outcomes[dtype] = fn(torch.empty(1, dtype=dtype, device=device))
    with runner._lock, torch.no_grad(), quiet.of(torch):
        runner._change()
        for item in items:
            results = [outcomes[held.dtype] for held in item.held]
            if any(result.device != device for result in results):
                _leave(runner, item, next(result.device for result in results if result.device != device))
            elif any(result.dtype != held.dtype for result, held in zip(results, item.held)):
                _convert(torch, runner, item, fn)
        runner.planner.forget(runner.items, runner._fixed)
        runner._is_changing = False


def _to_host(runner: Any, item: Item) -> None:
    """The item's bytes are on the host alone."""
    runner.check(item)
    item.is_resident = False
    if item.storage is not None:
        runner._release(item)
    runner.card.settle()


def _leave(runner: Any, item: Item, device: Any) -> None:
    """The tensors are the program's again, on the device that they are moved to."""
    _to_host(runner, item)
    for held in item.held:
        if device.type != "meta":
            held.tensor.data = runner.card.on_cpu(item.host, held).to(device)
    runner.drop(item)


def _convert(torch: Any, runner: Any, item: Item, fn: Any) -> None:
    """The item's values in another type, in new pinned memory."""
    _to_host(runner, item)
    card = runner.card
    kinds = {held.dtype for held in item.held}
    if len(kinds) > 1:
        # Overlapping tensors of several types: they leave, and are converted as ordinary ones.
        return _leave(runner, item, card.device)
    values = fn(item.host[: item.nbytes // item.held[0].dtype.itemsize * item.held[0].dtype.itemsize].view(item.held[0].dtype)).contiguous()
    item.nbytes = values.nbytes
    item.host = card.host(item.nbytes)
    item.host.copy_(values.view(torch.uint8))
    item.view, item.after = card.view(item.host), None
    for held in item.held:
        held.dtype = values.dtype
        held.on_host = card.tensor(item.view, held)
        held.tensor.data = held.on_host
    return None
