"""Checks of a program: the answer that lets it go on, if the other one leads straight to a `raise`.

`assert (boxes[:, 2:] >= boxes[:, :2]).all()` reads values that are not known on the card. On a GPU such a check passes,
or there would be nothing to estimate. The bytecode after the read says which answer that is.
"""

import dis
from functools import lru_cache
from types import CodeType
from typing import Any, Optional

# Instructions that may stand between the read and the jump that it decides.
_BETWEEN = ("CACHE", "COPY", "EXTENDED_ARG", "NOP", "NOT_TAKEN", "PRECALL", "TO_BOOL", "UNARY_NOT")
# A message of an exception is made in fewer instructions.
_MOST = 120


def answer(frame: Any) -> Optional[bool]:
    """The answer that lets the program of `frame` go on; None if both do, or if it is not clear.

    The frame is at the instruction that reads: a jump, a `not`, or a call whose result is the truth value.
    """
    return _answer(frame.f_code, frame.f_lasti)


@lru_cache(maxsize=1024)
def _answer(code: CodeType, offset: int) -> Optional[bool]:
    instructions = list(dis.get_instructions(code))
    numbers = {instruction.offset: number for number, instruction in enumerate(instructions)}
    at = numbers.get(offset)
    if at is None:
        return None
    negated = False
    if instructions[at].opname.startswith("CALL"):
        at += 1
    while at < len(instructions) and instructions[at].opname in _BETWEEN:
        negated ^= instructions[at].opname == "UNARY_NOT"
        at += 1
    if at >= len(instructions):
        return None
    name = instructions[at].opname
    target = numbers.get(instructions[at].argval) if name.endswith(("IF_TRUE", "IF_FALSE")) else None
    if target is None:
        return None
    jumps_if = name.endswith("IF_TRUE")
    ends_there, ends_here = _raises(instructions, target), _raises(instructions, at + 1)
    if ends_there == ends_here:
        return None
    return (jumps_if if ends_here else not jumps_if) ^ negated


def _raises(instructions: "list[dis.Instruction]", at: int) -> bool:
    """True if the instructions from here on end in a `raise` without a choice on the way."""
    for instruction in instructions[at : at + _MOST]:
        if instruction.opname == "RAISE_VARARGS":
            return True
        if "JUMP" in instruction.opname or instruction.opname.startswith(("RETURN", "FOR_", "RERAISE", "YIELD", "SEND")):
            return False
    return False
