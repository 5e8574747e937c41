"""What a card may need besides XLA's plan, read from the instructions of a dump.

Transforms: at each call cuFFT takes a workspace from the allocator, after XLA's temporaries and before it gives
anything back. cuFFT's documentation names one complex number for each element of the batch as the usual size.

Updates in place: without a card XLA writes a slice into a large array that the program was given. On a card it was seen
to copy such an array, and why is not known: the estimate says how large the array is.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .allocations import _fields, _varint

# Bits of an element by XLA's number of its type, if they are not 32 or 8: 16, 64 and 128 wide, then 4.
_BITS = {3: 16, 7: 16, 10: 16, 16: 16, 5: 64, 9: 64, 12: 64, 15: 64, 18: 128, 21: 4, 22: 4, 13: 0, 14: 0, 17: 0}
_EIGHT = (1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33)
_DOUBLE = (12, 18)


@dataclass
class _Instruction:
    opcode: str = ""
    size: int = 0
    shape: "tuple[int, ...]" = ()
    type: int = 0
    number: int = 0
    operands: "list[int]" = field(default_factory=list)
    lengths: "list[int]" = field(default_factory=list)
    calls: "list[int]" = field(default_factory=list)


# Opcodes as they stand in a dump. Few computations have them, and only those are read.
_TRANSFORM, _UPDATE = b"\x12\x03fft", b"\x12\x14dynamic-update-slice"


def workspace(dump: str) -> int:
    """The most bytes that a transform of the program takes for its work."""
    most = 0
    for _, part in _computations(dump)[1]:
        known = _instructions(part) if _TRANSFORM in part else {}
        for instruction in known.values():
            if instruction.opcode == "fft" and instruction.lengths:
                # The batch is what stands before the transformed dimensions.
                batch = math.prod(instruction.shape[: -len(instruction.lengths)])
                kinds = {instruction.type, *(known[n].type for n in instruction.operands if n in known)}
                most = max(most, batch * math.prod(instruction.lengths) * (16 if kinds & set(_DOUBLE) else 8))
    return most


def updated_in_place(dump: str) -> int:
    """The bytes of the largest array of the program's own that gets a slice written into it, outside of loops."""
    entry, computations = _computations(dump)
    writes = {number for number, part in computations if _UPDATE in part}
    most = 0
    for number, part in computations:
        known = _instructions(part) if number == entry and writes else {}
        for instruction in known.values():
            if instruction.opcode == "dynamic-update-slice" or (instruction.opcode == "fusion" and writes.intersection(instruction.calls)):
                operands = [known[n] for n in instruction.operands if n in known]
                if any(operand.opcode == "parameter" and operand.size == instruction.size for operand in operands):
                    most = max(most, instruction.size)
    return most


def _computations(dump: str) -> "tuple[int, list[tuple[int, bytes]]]":
    """The number of the entry, and each computation with its number."""
    entry, found = 0, []
    for part in _parts(memoryview(Path(dump).read_bytes()), 1):
        for number, value in _fields(part):
            if number == 6 and isinstance(value, int):
                entry = value
            elif number == 3 and isinstance(value, memoryview):
                own = next((n for key, n in _fields(value) if key == 5 and isinstance(n, int)), 0)
                found.append((own, bytes(value)))
    return entry, found


def _instructions(computation: bytes) -> "dict[int, _Instruction]":
    return {found.number: found for part in _parts(memoryview(computation), 2) for found in (_instruction(part),)}


def _parts(data: memoryview, wanted: int) -> "Iterator[memoryview]":
    for number, value in _fields(data):
        if number == wanted and isinstance(value, memoryview):
            yield value


def _instruction(data: memoryview) -> _Instruction:
    found = _Instruction()
    lists = {32: found.lengths, 36: found.operands, 38: found.calls}
    for number, value in _fields(data):
        if number == 2 and isinstance(value, memoryview):
            found.opcode = bytes(value).decode("utf-8", "replace")
        elif number == 3 and isinstance(value, memoryview):
            found.size, found.shape, found.type = _shape(value)
        elif number == 35 and isinstance(value, int):
            found.number = value
        elif number in lists:
            lists[number].extend(_numbers(value))
    return found


def _shape(data: memoryview) -> "tuple[int, tuple[int, ...], int]":
    """The bytes, the dimensions and the type of a shape; of a tuple, the bytes of its parts."""
    kind, parts = 0, 0
    dimensions: list[int] = []
    for number, value in _fields(data):
        if number == 2 and isinstance(value, int):
            kind = value
        elif number == 3:
            dimensions += _numbers(value)
        elif number == 4 and isinstance(value, memoryview):
            parts += _shape(value)[0]
    bits = 8 if kind in _EIGHT else _BITS.get(kind, 32)
    return parts or math.prod(dimensions) * bits // 8, tuple(dimensions), kind


def _numbers(value: "int | memoryview") -> "list[int]":
    """A repeated number, packed or not."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(number)
    return found
