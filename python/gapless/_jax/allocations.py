"""The allocations of a compiled program, from XLA's dump: what a call takes besides its arguments.

Reads only the list of allocations from the protocol buffer, and none of the instructions. `gapless report` reads all.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# XLA's numbers of memory spaces.
DEVICE, HOST = 0, 5


@dataclass(frozen=True)
class Allocation:
    index: int
    size: int
    space: int
    parameter: bool
    constant: bool
    output: bool
    local: bool

    @property
    def taken(self) -> bool:
        """True if each call takes it from the allocator of the device."""
        return self.space == DEVICE and self.size > 0 and not (self.parameter or self.constant or self.local)


def of(dump: str) -> "list[Allocation]":
    """The allocations, in the order in which XLA takes them."""
    data = memoryview(Path(dump).read_bytes())
    found = []
    for number, value in _fields(data):
        if number == 3 and isinstance(value, memoryview):
            for inner, allocation in _fields(value):
                if inner == 3 and isinstance(allocation, memoryview):
                    found.append(_allocation(allocation))
    return sorted(found, key=lambda allocation: allocation.index)


def _allocation(data: memoryview) -> Allocation:
    numbers = {number: value for number, value in _fields(data) if isinstance(value, int)}

    def flag(number: int) -> bool:
        return bool(numbers.get(number, 0))

    return Allocation(numbers.get(1, 0), numbers.get(2, 0), numbers.get(8, 0), flag(5), flag(12), flag(7), flag(3))


def _fields(data: memoryview) -> "Iterator[tuple[int, int | memoryview]]":
    """The fields of a message: numbers, and parts of known length."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif wire == 2:
            length, at = _varint(data, at)
            yield key >> 3, data[at : at + length]
            at += length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"a protocol buffer has no wire type {wire}")


def _varint(data: memoryview, at: int) -> "tuple[int, int]":
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return number, at
        shift += 7
