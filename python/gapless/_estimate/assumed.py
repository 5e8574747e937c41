"""Values that the user knows: `--assume FILE:LINE=VALUE` is the answer at a line that reads a value which the card does
not have."""

import ast
import os
from typing import Any, NamedTuple

from .._errors import GaplessError
from .unknown import ALMOST_ZERO, Unknown

_WORDS = {"true": True, "false": False}


class Assumption(NamedTuple):
    """At this line of this file (its last parts are enough) the program reads this value."""

    file: str
    line: int
    value: Any


def parse(text: str) -> Assumption:
    place, equals, word = text.partition("=")
    file, colon, line = place.rpartition(":")
    told = f"invalid --assume {text}: write FILE:LINE=VALUE, as in --assume train.py:42=true or --assume loss.py:7=[3,5]"
    if not (equals and colon and file and line.isdigit()):
        raise GaplessError(told)
    try:
        value = _WORDS[word.lower()] if word.lower() in _WORDS else ast.literal_eval(word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise GaplessError(told) from None
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(isinstance(part, (bool, int, float)) for part in parts):
        raise GaplessError(told)
    return Assumption(file, int(line), value)


class Assumptions:
    """All that were given. `used` has those that were asked for."""

    def __init__(self, given: "list[Assumption]") -> None:
        self._given = given
        self.used: set[Assumption] = set()

    def at(self, place: str) -> Any:
        """The value at a place; None if nothing is assumed there."""
        for one in self._given:
            file, _, line = place.rpartition(":")
            if line == str(one.line) and (file == one.file or file.endswith(os.sep + one.file.lstrip("./"))):
                self.used.add(Assumption(one.file, one.line, repr(one.value)))
                return one.value
        return None

    @property
    def unused(self) -> "list[str]":
        used = {(one.file, one.line) for one in self.used}
        return [f"{one.file}:{one.line}" for one in self._given if (one.file, one.line) not in used]


def shaped(value: Any, found: Any) -> Any:
    """The assumed value in the form of what the read would give: a truth, a number, or a list of numbers."""
    if isinstance(found, list):
        if isinstance(value, list) and len(value) == len(found):
            return value
        return [shaped(value[0] if isinstance(value, list) else value, part) for part in found]
    one = value[0] if isinstance(value, list) else value
    if isinstance(one, bool) and isinstance(found, float):
        # A truth is about the comparison on this line, which asks for it again (Unknown.told).
        return Unknown(ALMOST_ZERO)
    return type(found)(one) if isinstance(found, (bool, int, float)) else one
