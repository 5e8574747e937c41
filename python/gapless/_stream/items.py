"""The weights of models: which bytes belong together, and where each module uses them.

An item is a range of memory that one or several parameters and buffers lie in: tied weights are one item. Its bytes are
in pinned host memory, and a storage on the card has them while they are there. Parameters stay the objects that they
are: only what they show changes, by `.data`: the copy on the card, or the card's view of the host memory. Either is a
tensor of the card with the right values, so a use that was not foreseen is slow, and never wrong.
"""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from .._errors import OptionError

# Ranges begin at a multiple of this within their storage, so that every type of value is aligned in its copy.
_ALIGNED = 256


class Held:
    """A tensor of an item, and how it lies in the item's bytes."""

    __slots__ = ("dtype", "offset", "on_host", "size", "stride", "tensor", "version")

    def __init__(self, tensor: Any, offset: int) -> None:
        self.tensor, self.dtype = tensor, tensor.dtype
        # In values, from the begin of the item.
        self.offset = offset
        self.size, self.stride = tuple(tensor.shape), tensor.stride()
        # The tensor over the host's memory, as the card sees it.
        self.on_host: Any = None
        # The version when the copy on the card was shown; None: this tensor does not count its versions.
        self.version: Optional[int] = None


class Item:
    """Bytes that move together."""

    __slots__ = (
        "after",
        "home",
        "held",
        "host",
        "is_called",
        "is_half_shown",
        "is_resident",
        "is_shown",
        "last_used",
        "mark",
        "name",
        "nbytes",
        "number",
        "origin",
        "owners",
        "seen_by",
        "shown_since",
        "storage",
        "users",
        "versions",
        "view",
        "wanted",
        "written",
    )

    def __init__(self, number: int, name: str, nbytes: int) -> None:
        self.number, self.name, self.nbytes = number, name, nbytes
        self.held: list[Held] = []
        # Modules that have buffers here: kernels of norms write to these in training mode, and count no version.
        self.owners: list[Any] = []
        # The device that it came from.
        self.origin: Any = None
        # Pinned bytes on the host, and their storage as the card sees them.
        self.host: Any = None
        self.view: Any = None
        # The copy on the card, the end of its copying, the stream that it was allocated on, and other streams.
        self.storage: Any = None
        self.mark: Any = None
        self.home: Any = None
        self.seen_by: list[Any] = []
        self.is_shown = self.is_half_shown = False
        # Passes that were over when it was shown. After more of them the program may have written to it by `.data`.
        self.shown_since = 0
        self.is_resident = False
        # It came when it was called, unexpected: it is kept as long as there is room, and used again perhaps.
        self.is_called = False
        # Calls that use it now, and uses ahead that its copy is meant for.
        self.users: set[Any] = set()
        self.wanted = 0
        # A copy to the host that its bytes come from.
        self.after: Any = None
        self.written = 0
        self.last_used = 0
        # Of its tensors, when its copy was begun.
        self.versions: tuple[int, ...] = ()

    def is_written(self) -> bool:
        """True if its tensors may have been written to since they show the copy on the card."""
        if any(held.version is not None and held.tensor._version != held.version for held in self.held):
            return True
        return any(module is not None and module.training for module in (owner() for owner in self.owners))

    def versions_now(self) -> tuple[int, ...]:
        """Equal as long as nothing but `.data` has written to its tensors."""
        return tuple(held.tensor._version for held in self.held if not held.tensor.is_inference())

    def __repr__(self) -> str:
        return f"<{self.name}: {self.nbytes}>"


class Place:
    """A module: the items that it uses itself when it is called."""

    __slots__ = ("end", "in_place", "is_dead", "items", "name", "number", "runner", "whole")

    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        # The number after those of the modules below it.
        self.end = number + 1
        self.items: tuple[Item, ...] = ()
        # All items below it: a compiled module calls its children in one piece.
        self.whole: tuple[Item, ...] = ()
        # True: a table of which some rows are read. The card reads them from the host.
        self.in_place = False
        # The module is gone.
        self.is_dead = False
        self.runner: Any = None


def key_of(tensor: Any) -> int:
    """Equal for tensors of one storage."""
    return int(tensor.untyped_storage()._cdata)


def is_plain(torch: Any, tensor: Any) -> bool:
    return tensor.layout is torch.strided and type(tensor.data) is torch.Tensor and not tensor.is_quantized


def named_tensors(models: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any, Any, bool]]:
    """Each parameter and buffer of each module: its name, the module, the tensor, whether it is a buffer."""
    seen: set[int] = set()
    for label, model in models:
        for path, module in model.named_modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            for is_buffer, tensors in ((False, module._parameters), (True, module._buffers)):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        yield ".".join(part for part in (label, path, name) if part), module, tensor, is_buffer


def _extent(tensor: Any) -> tuple[int, int]:
    """The bytes of its storage that a tensor lies in."""
    width = tensor.element_size()
    first = tensor.storage_offset() * width
    last = first + (1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))) * width
    return first // _ALIGNED * _ALIGNED, last


class Found:
    """Items of some models, before they are moved: their ranges."""

    def __init__(self, torch: Any, models: list[tuple[str, Any]], first: int = 0) -> None:
        self._first = first
        self.items: list[Item] = []
        self.skipped: list[str] = []
        # Items by the tensor's id.
        self.of: dict[int, Item] = {}
        ranges: dict[Any, list[tuple[int, int, str, Any, Any]]] = {}
        taken: set[int] = set()
        for name, module, tensor, is_buffer in named_tensors(models):
            if id(tensor) in taken:
                continue
            taken.add(id(tensor))
            if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
                raise OptionError(f"{name} has no shape yet: call the model once, so that its lazy modules get their parameters")
            if tensor.is_meta:
                raise OptionError(f"{name} is on the meta device and has no values: load the model's weights, then stream it")
            for part in parts_of(torch, tensor):
                if tensor.numel() == 0 or not is_plain(torch, part):
                    self.skipped.append(name)
                    continue
                first, last = _extent(part)
                # Weights of a recurrent network are one piece for the kernels.
                group = (key_of(part), id(module) if isinstance(module, torch.nn.RNNBase) else 0)
                ranges.setdefault(group, []).append((first, last, name, part, module if is_buffer else None))
        for group, found in ranges.items():
            self._merge(found, group[1] != 0)

    def _merge(self, found: list[tuple[int, int, str, Any, Any]], is_one: bool) -> None:
        """Ranges that overlap are one item."""
        found.sort(key=lambda entry: entry[:2])
        end = -1
        for first, last, name, tensor, owner in found:
            if not self.items or (first >= end and not (is_one and end >= 0)):
                self.items.append(Item(self._first + len(self.items), name, 0))
                start, item = first, self.items[-1]
                end = last
                item.origin = tensor.device
            end = max(end, last)
            item.nbytes = end - start
            item.held.append(Held(tensor, tensor.storage_offset() - start // tensor.element_size()))
            if owner is not None:
                item.owners.append(weakref.ref(owner))
            self.of[id(tensor)] = item


def parts_of(torch: Any, tensor: Any) -> list[Any]:
    """The plain tensors that a tensor is made of: quantised ones have several."""
    data = tensor.data
    if type(data) is torch.Tensor or not hasattr(data, "__tensor_flatten__"):
        return [tensor]
    found = []
    for name in data.__tensor_flatten__()[0]:
        found.extend(parts_of(torch, getattr(data, name)))
    return found


def places_of(torch: Any, models: list[tuple[str, Any]], found: Found, first: int = 0) -> list[tuple[Any, Place]]:
    """A place for each module, in the order of definition."""
    made: dict[int, tuple[Any, Place]] = {}
    for label, model in models:
        for path, module in model.named_modules():
            if id(module) in made:
                continue
            place = Place(first + len(made), ".".join(part for part in (label, path) if part) or type(model).__name__)
            own = (part for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None for part in parts_of(torch, tensor))
            place.items = tuple(dict.fromkeys(found.of[id(tensor)] for tensor in own if id(tensor) in found.of))
            below = (part for tensor in (*module.parameters(), *module.buffers()) for part in parts_of(torch, tensor))
            place.whole = tuple(dict.fromkeys(found.of[id(tensor)] for tensor in below if id(tensor) in found.of))
            place.in_place = isinstance(module, torch.nn.Embedding) and module.max_norm is None
            made[id(module)] = (module, place)
    for _, (module, place) in made.items():
        place.end = 1 + max(made[id(below)][1].number for below in module.modules())
    return list(made.values())
