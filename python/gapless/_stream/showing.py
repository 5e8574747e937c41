"""The memory that the tensors of an item show: its copy on the card, or the card's view of its bytes on the host."""

from typing import Any

from .items import Item


def show(card: Any, item: Item, passes: int) -> None:
    """Lets the tensors show the copy on the card, which the work that follows waits for."""
    stream = card.stream()
    if stream not in item.seen_by:
        card.gate(item.mark)
        if stream != item.home:
            card.also_used(card.tensor(item.storage, item.held[0]), stream)
        item.seen_by.append(stream)
    if item.is_shown:
        return
    item.is_half_shown = True
    for held in item.held:
        held.tensor.data = card.tensor(item.storage, held)
        held.version = None if held.tensor.is_inference() else held.tensor._version
    item.shown_since = passes
    item.is_shown, item.is_half_shown = True, False


def hide(item: Item) -> None:
    """Lets the tensors show the host's bytes."""
    item.is_half_shown = True
    for held in item.held:
        held.tensor.data = held.on_host
    item.is_shown = item.is_half_shown = False


def check(card: Any, item: Item) -> bool:
    """Looks whether the program has given a tensor other memory, as `.data`. Values that fit are taken over; any other
    tensor is the program's from now on. False if none is left."""
    at = (item.storage if item.is_shown else item.view).data_ptr()
    for held in list(item.held):
        tensor = held.tensor
        if tensor.data_ptr() == at + held.offset * held.dtype.itemsize:
            continue
        if tuple(tensor.shape) == held.size and tensor.dtype == held.dtype and tensor.device == card.device:
            mine = card.tensor(item.storage, held) if item.is_shown else held.on_host
            mine.copy_(tensor.data)
            tensor.data = mine
        else:
            item.held = [other for other in item.held if other is not held]
    return bool(item.held)
