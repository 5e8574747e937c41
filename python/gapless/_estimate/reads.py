"""Reads of values that are not known: the answers that the program gets, and the notes of them.

A read gets the card's zero, or of floats a number next to it, because a program may divide by it or take its logarithm.
A check that would end the program is taken to pass. An assumption of the user about a place comes before all of that.
"""

import os
from typing import Any, Callable, Optional

from . import calls, checks, loops
from .assumed import Assumptions, shaped
from .calls import mapped
from .unknown import ALMOST_ZERO, Unknown

# A loop that ends by an unknown value would never end, so after every so many reads the answer is yes.
_PATIENCE = 1000
# The answer at a place that compares a number: it is taken for one next to 0.
NUMBER = "a number next to 0"
_COMPARES = {"__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__"}


class Reads:
    """Notes by place: function, times, bytes."""

    def __init__(self, assumptions: "Optional[Assumptions]" = None) -> None:
        self.assumptions = assumptions or Assumptions([])
        self.reads: dict[str, tuple[str, int, int]] = {}
        # Choices among unknown numbers that sizes depend on.
        self.choices: dict[str, tuple[str, int, int]] = {}
        # Places at which the size of a result was counted from known values.
        self.sampled: dict[str, tuple[str, int, int]] = {}
        # Places at which an unknown value decided something, with the answer that the program got.
        self.decided: dict[str, str] = {}
        Unknown.told = self._compared

    def clear(self) -> None:
        for rows in (self.reads, self.choices, self.sampled, self.decided):
            rows.clear()

    def read(self, name: str, size: int = 0) -> int:
        """Notes a read at the program's present place; returns how often it was read there."""
        return _note(self.reads, calls.place(), name, size)

    def chose(self, name: str, size: int, place: Optional[str] = None) -> None:
        _note(self.choices, place or calls.place(), name, size)

    def sampled_at(self, name: str, size: int) -> None:
        _note(self.sampled, calls.place(), name, size)

    def unknown(self, name: str, read: Callable[[], Any], is_float: bool) -> Any:
        """The program's answer for a value that is not known; `read` reads the card."""
        place = calls.place()
        assumed = self.assumptions.at(place)
        if assumed is not None:
            return float(assumed) if name == "__float__" and isinstance(assumed, bool) else shaped(assumed, read())
        passes = checks.answer(calls.caller()) if name in calls.TRUTHS else None
        if passes is not None:
            _note(self.reads, place, "a check", 0)
            return passes
        times = _note(self.reads, place, name, 0)
        found = read()
        if name in calls.TRUTHS:
            found = name == "__bool__" and times % _PATIENCE == 0
            self.decided.setdefault(place, str(found).lower())
            return found
        if name == "__float__":
            # __float__ has to return a plain float.
            return float(found or ALMOST_ZERO)
        if is_float and isinstance(found, (float, list)):
            return mapped(found, lambda number: Unknown(number or ALMOST_ZERO))
        if isinstance(found, (int, list)):
            self.decided.setdefault(place, "0")
        return found

    def guessed(self, name: str, found: Any) -> Any:
        """The program's answer for a value that follows from numbers that are taken to be next to 0."""
        place = calls.place()
        assumed = self.assumptions.at(place)
        if assumed is not None:
            return float(assumed) if name == "__float__" and isinstance(assumed, bool) else shaped(assumed, found)
        passes = checks.answer(calls.caller()) if name in calls.TRUTHS else None
        if passes is not None:
            _note(self.reads, place, "a check", 0)
            return passes
        times = _note(self.reads, place, name, 0)
        if name in calls.TRUTHS:
            # A loop would go on for ever.
            found = found != (times % _PATIENCE == 0)
            self.decided.setdefault(place, str(found).lower())
            return found
        if not isinstance(found, (float, list)):
            self.decided.setdefault(place, str(found))
        if name == "__float__":
            return float(found)
        return mapped(found, lambda number: Unknown(number) if isinstance(number, float) else number)

    def _compared(self, question: str) -> Any:
        """An unknown number decides something on the host."""
        place = calls.place()
        assumed = self.assumptions.at(place)
        if assumed is None:
            _note(self.reads, place, "a comparison" if question in _COMPARES else "int", 0)
            self.decided.setdefault(place, NUMBER)
        return assumed

    @property
    def first(self) -> Optional[str]:
        """The first place at which a value that is not known decided something."""
        return next(iter(self.decided), None)

    @property
    def open_loops(self) -> "list[str]":
        """Places that decided how often a loop ran, which may run more often on a card."""
        return [place for place, answer in self.decided.items() if loops.open_ended(place, answer)]

    @property
    def rows(self) -> "dict[str, Any]":
        return {
            "reads": _rows(self.reads),
            "choices": _rows(self.choices),
            "sampled": _rows(self.sampled),
            "decided": self.decided,
            "open_loops": self.open_loops,
        }


def short(place: str) -> str:
    """A place in the form that `--assume` takes."""
    file, _, line = place.rpartition(":")
    return f"{os.path.basename(file)}:{line}"


def _note(notes: "dict[str, tuple[str, int, int]]", place: str, name: str, size: int) -> int:
    first, times, most = notes.get(place, (name, 0, 0))
    notes[place] = (name, times + 1, max(most, size))
    return times + 1


def _rows(notes: "dict[str, tuple[str, int, int]]") -> "list[dict[str, Any]]":
    return [{"place": place, "function": name, "times": times, "bytes": size} for place, (name, times, size) in notes.items()]
