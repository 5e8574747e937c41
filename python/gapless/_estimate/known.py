"""The known values in the memory of a card that stores none: for each storage its bytes, and which of them hold.

Values belong to storages and not to tensors, so that every tensor over the same memory has them: views that a program
writes into, what autograd kept for the backward pass, what code in C++ hands on. A storage of the card holds its shadow
as an attribute, and the shadow goes with it.

    a tensor is known  <=>  its storage has a shadow, and all bytes that the tensor covers hold

Parameters are never known: the program's own steps change them by numbers that the card does not have.
"""

import ctypes
import weakref
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from . import hollow

# Values are kept for storages up to this many bytes, and tensors up to this many elements.
_MOST_BYTES, MOST_ELEMENTS = 1 << 26, 1 << 22
# Storages that are known only in parts cost a flag a byte, so floats are kept in parts only up to this size.
_MOST_PARTS = 1 << 18
_SHADOW, _UNSET, _NEVER, _INDICES = "gapless_shadow", "gapless_unset", "gapless_never", "gapless_indices"


class Choice(NamedTuple):
    """A choice among unknown numbers. It is noted when a size or a branch depends on it, and not when it is only
    counted for a figure of the program."""

    place: str
    name: str
    size: int


# A single unknown number is taken to be next to 0, and so are results that follow from it alone.
GUESS = "a number that is not known"


class Shadow:
    """The bytes of one storage. `holds` is None if all of them hold, else a flag for each byte."""

    __slots__ = ("_bases", "bytes", "choice", "holds", "owner", "__weakref__")

    def __init__(self, size: int, whole: bool, written: bool = False) -> None:
        # A program in inference mode shares these with parts of it that are not.
        with torch.inference_mode(False):
            # Empty if all of it is about to be `written`. Otherwise zero, which is how unwritten memory reads.
            self.bytes: Tensor = (torch.empty if written else torch.zeros)(size, dtype=torch.uint8, device="cpu")
            self.holds: Optional[Tensor] = None if whole else torch.zeros(size, dtype=torch.bool, device="cpu")
        self.choice: Optional[Choice] = None
        self.owner: Callable[[], Any] = lambda: None
        self._bases: dict[Any, Tensor] = {torch.uint8: self.bytes}

    def view(self, tensor: Tensor) -> Tensor:
        """The bytes as the tensor lies over them."""
        base = self._bases.get(tensor.dtype)
        if base is None:
            with torch.inference_mode(False):
                size = tensor.element_size()
                base = self._bases[tensor.dtype] = self.bytes[: self.bytes.numel() // size * size].view(tensor.dtype)
        found = base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        if tensor.is_conj():
            found = found.conj()
        return found._neg_view() if tensor.is_neg() else found

    def flags(self, tensor: Tensor) -> "list[Tensor]":
        """For each byte of an element, the flags of the elements: an empty list if all bytes hold."""
        if self.holds is None:
            return []
        size = tensor.element_size()
        strides = [stride * size for stride in tensor.stride()]
        return [self.holds.as_strided(tensor.shape, strides, tensor.storage_offset() * size + byte) for byte in range(size)]

    def all_hold(self, tensor: Tensor) -> bool:
        return all(bool(flags.all()) for flags in self.flags(tensor))

    def split(self) -> None:
        """Gives each byte a flag, so that parts of it may not hold."""
        if self.holds is None:
            with torch.inference_mode(False):
                self.holds = torch.ones(self.bytes.numel(), dtype=torch.bool, device="cpu")

    def mark(self, tensor: Tensor, holds: bool) -> None:
        if not holds:
            self.split()
        for flags in self.flags(tensor):
            flags.fill_(holds)
        if holds and self.holds is not None and bool(self.holds.all()):
            self.holds = None


def storage_of(tensor: Tensor) -> Any:
    """The storage of a tensor; None if it has no memory, as sparse tensors, those of some subclasses, and those that a
    compiler traces with."""
    try:
        storage = tensor.untyped_storage()
        # Raises if the storage has no memory.
        storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    return storage


def _covers(tensor: Tensor, size: int) -> bool:
    """True if the elements of a tensor are all that its storage of `size` bytes has."""
    return tensor.numel() * tensor.element_size() == size and all(stride or side < 2 for side, stride in zip(tensor.shape, tensor.stride()))


def _lies_at(shadow: Shadow, place: int) -> bool:
    """True if the storage of a shadow still has its memory there: one that was resized has given it back."""
    owner = shadow.owner()
    return owner is not None and owner.data_ptr() == place and owner.nbytes() == shadow.bytes.numel()


class Known:
    """The shadows of all storages of the card."""

    def __init__(self) -> None:
        self._places: weakref.WeakValueDictionary[int, Shadow] = weakref.WeakValueDictionary()

    # ---- what is known ----

    def shadow(self, tensor: Tensor) -> Optional[Shadow]:
        storage = storage_of(tensor)
        return None if storage is None else self._of(storage)

    def _of(self, storage: Any) -> Optional[Shadow]:
        found: Optional[Shadow] = getattr(storage, _SHADOW, None)
        if found is None and self._places:
            # Another object over the same memory: other libraries make such storages.
            place = storage.data_ptr()
            found = self._places.get(place)
            if found is not None and not _lies_at(found, place):
                found = None
        # A storage that was resized has lost its bytes.
        return found if found is None or found.bytes.numel() == storage.nbytes() else None

    def value(self, tensor: Tensor) -> Optional[Tensor]:
        """The tensor's value on the host, if it is known. It changes with what the program writes to the card."""
        if tensor.device.type == "cpu":
            return None if tensor.requires_grad or tensor.numel() > MOST_ELEMENTS or hollow.is_hollow(tensor) else tensor
        if not tensor.is_cuda or isinstance(tensor, torch.nn.Parameter) or tensor.numel() > MOST_ELEMENTS:
            return None
        if tensor.layout != torch.strided:
            return getattr(tensor, _INDICES, None)
        shadow = self.shadow(tensor)
        if shadow is None:
            return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu") if tensor.numel() == 0 and storage_of(tensor) is not None else None
        return shadow.view(tensor) if shadow.all_hold(tensor) else None

    def choice(self, tensor: Tensor) -> Optional[Choice]:
        """The choice that the tensor's value was assumed from."""
        shadow = self.shadow(tensor) if tensor.is_cuda else None
        return None if shadow is None else shadow.choice

    def guess(self, tensors: "list[Tensor]") -> bool:
        """True if the value of one of the tensors depends on a number that is taken to be next to 0."""
        return any(choice is not None and choice.name == GUESS for choice in map(self.choice, tensors))

    # ---- what is learned ----

    def guess_number(self, tensor: Any, number: float) -> None:
        """A new tensor of one float, which is not known, is taken to be this number."""
        if isinstance(tensor, Tensor) and tensor.is_cuda and tensor.numel() == 1 and tensor.is_floating_point() and tensor.layout == torch.strided:
            storage = storage_of(tensor)
            if storage is not None and storage.nbytes() == tensor.element_size():
                self.learn(tensor, torch.full(tensor.shape, number, device="cpu"), Choice("", GUESS, 0))

    def learn(self, tensor: Tensor, value: Tensor, choice: Optional[Choice] = None) -> None:
        """The tensor has this value from now on, and so has all that shares its memory."""
        if tensor.layout != torch.strided:
            setattr(tensor, _INDICES, value)
            return
        shadow = self.to_write(tensor, all_of_it=True)
        if shadow is None:
            return
        try:
            with torch.no_grad():
                shadow.view(tensor).copy_(value)
        except RuntimeError:
            # Expanded tensors have elements that share a place, and cannot be copied to.
            if _covers(tensor, shadow.bytes.numel()):
                self.forget(tensor)
            return
        shadow.mark(tensor, True)
        if choice is not None or shadow.holds is None:
            shadow.choice = choice

    def learn_part(self, tensor: Tensor, value: Tensor, holds: Tensor) -> None:
        """The tensor is new, and has these values at the elements that hold."""
        if self.shadow(tensor) is not None:
            return
        if bool(holds.all()):
            self.learn(tensor, value)
            return
        shadow = self.to_write(tensor, part=True)
        if shadow is not None and tensor.numel():
            with torch.no_grad():
                shadow.view(tensor).copy_(value)
            for flags in shadow.flags(tensor):
                flags.copy_(holds)

    def to_write(self, tensor: Tensor, part: bool = False, all_of_it: bool = False) -> Optional[Shadow]:
        """The shadow of a tensor of the card that is written to: in a `part` of its elements, in those that a function
        changes, or in all of it."""
        storage = storage_of(tensor)
        if storage is None or not tensor.is_cuda:
            return None
        found = self._of(storage)
        if found is not None or getattr(storage, _NEVER, False) or tensor.numel() > MOST_ELEMENTS:
            return found
        size = storage.nbytes()
        # Memory that the program never writes may hold anything, and is taken as zero.
        whole = getattr(storage, _UNSET, False) or (not part and _covers(tensor, size))
        if size > _MOST_BYTES or (not whole and tensor.is_floating_point() and size > _MOST_PARTS):
            return None
        if getattr(storage, _UNSET, False):
            delattr(storage, _UNSET)
        return self._keep(storage, Shadow(size, whole, written=all_of_it and _covers(tensor, size)))

    def _keep(self, storage: Any, shadow: Shadow) -> Shadow:
        setattr(storage, _SHADOW, shadow)
        shadow.owner = weakref.ref(storage)
        if storage.data_ptr():
            self._places[storage.data_ptr()] = shadow
        return shadow

    def unset(self, tensor: Tensor) -> None:
        """The tensor was allocated, and nothing was written to it."""
        storage = storage_of(tensor)
        if storage is not None and tensor.is_cuda:
            setattr(storage, _UNSET, True)

    def is_unset(self, tensor: Tensor) -> bool:
        return bool(getattr(storage_of(tensor), _UNSET, False))

    def forget(self, tensor: Tensor) -> None:
        """The tensor's elements are unknown from now on."""
        storage = storage_of(tensor)
        if storage is None:
            return
        if getattr(storage, _UNSET, False):
            delattr(storage, _UNSET)
        shadow = getattr(storage, _SHADOW, None) or self._of(storage)
        if shadow is None:
            return
        if shadow.bytes.numel() == storage.nbytes() and tensor.numel() * tensor.element_size() < storage.nbytes():
            shadow.mark(tensor, False)
            return
        # Other objects may be over the same memory.
        shadow.holds = torch.zeros(shadow.bytes.numel(), dtype=torch.bool, device="cpu")
        self._places.pop(storage.data_ptr(), None)
        self.forget_storage(storage)

    def never(self, tensor: Tensor) -> None:
        """The tensor is a parameter: its values are never known."""
        storage = storage_of(tensor)
        if storage is not None and tensor.is_cuda:
            self.forget_storage(storage)
            setattr(storage, _NEVER, True)

    # ---- whole storages ----

    def forget_storage(self, storage: Any) -> None:
        if getattr(storage, _SHADOW, None) is not None:
            delattr(storage, _SHADOW)

    def storage(self, storage: Any) -> Optional[Tensor]:
        """All bytes of a storage, if all hold."""
        shadow = self._of(storage)
        return shadow.bytes if shadow is not None and shadow.holds is None else None

    def learn_storage(self, storage: Any, found: Tensor) -> None:
        if storage.nbytes() == found.numel() <= _MOST_BYTES and not getattr(storage, _NEVER, False):
            shadow = self._keep(storage, Shadow(found.numel(), True, written=True))
            shadow.bytes.copy_(found)

    # ---- reads that no Python sees ----

    def answer_reads(self, card: Any) -> None:
        """Makes the card ask here for bytes that code in C++ reads, such as lengths."""
        # A read may come from a thread without Python, while torch is in any mode.
        self._asked: Callable[..., Any] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(self._read)
        ctypes.c_void_p.in_dll(card, "card_answerer").value = ctypes.cast(self._asked, ctypes.c_void_p).value

    def _read(self, to: int, at: int, size: int) -> int:
        """Copies bytes of the card to the host if they are known; 1 if they are."""
        with torch._C.DisableTorchFunction():
            for place, shadow in list(self._places.items()):
                first = at - place
                if 0 <= first and first + size <= shadow.bytes.numel() and _lies_at(shadow, place):
                    if shadow.holds is not None and not bool(shadow.holds[first : first + size].all()):
                        return 0
                    ctypes.memmove(to, shadow.bytes.data_ptr() + first, size)
                    return 1
        return 0
