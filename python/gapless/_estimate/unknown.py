"""Numbers that the card does not have, such as losses, as the program holds them on the host.

They calculate as a number next to 0, and print as `?`. A decision by one of them is reported at its place.
"""

import re
from typing import Any, Callable, Optional

# Small enough to end a loop, but not zero: a program may divide by it or take its logarithm.
ALMOST_ZERO = 1e-12
_WIDTH = re.compile(r"(?:(.)?([<>=^]))?[-+ ]?z?#?0?(\d+)?")


class Unknown(float):
    """A number that is not known. `told(word)` is called when the program decides by one; it may return the answer."""

    told: "Optional[Callable[[str], Any]]" = None

    def __repr__(self) -> str:
        return "?"

    __str__ = __repr__

    def __format__(self, form: str) -> str:
        found = _WIDTH.match(form)
        width = int(found[3]) if found and found[3] else 0
        if found and found[2] in ("<", "^"):
            return "?".ljust(width) if found[2] == "<" else "?".center(width)
        return "?".rjust(width)

    def __round__(self, digits: Any = None) -> Any:
        return self if digits is not None else int(self)

    __hash__ = float.__hash__


def _calculates(name: str) -> Any:
    plain = getattr(float, name)

    def method(self: Unknown, *others: Any) -> Any:
        found = plain(self, *others)
        return Unknown(found) if type(found) is float else found

    method.__name__ = name
    return method


def _decides(name: str) -> Any:
    plain = getattr(float, name)

    def method(self: Unknown, *others: Any) -> Any:
        found = plain(self, *others)
        if found is NotImplemented or (others and others[0] is self):
            return found
        assumed = Unknown.told(name) if Unknown.told is not None else None
        return found if assumed is None else type(found)(assumed)

    method.__name__ = name
    return method


for _side in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Unknown, f"__{_side}__", _calculates(f"__{_side}__"))
    setattr(Unknown, f"__r{_side}__", _calculates(f"__r{_side}__"))
for _one in ("neg", "pos", "abs"):
    setattr(Unknown, f"__{_one}__", _calculates(f"__{_one}__"))
for _question in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "trunc", "floor", "ceil"):
    setattr(Unknown, f"__{_question}__", _decides(f"__{_question}__"))
