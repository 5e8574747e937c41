"""Options: keywords of enable(), and GAPLESS_* environment variables of the same names in capitals.

options.csv has their names, their types and their help. A keyword wins over its variable. A name that does not exist
is an error that names the nearest, since an option that is silently ignored looks like one that does not help. Values
become numbers here, so that the library only ever reads bytes.
"""

import difflib
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional

from ._errors import GaplessWarning, OptionError

PREFIX = "GAPLESS_"

_UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}


_SIZE = re.compile(r"\s*([0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)\s*([A-Za-z]*)\s*", re.ASCII)


def parse_bytes(value: Any) -> int:
    """A number of bytes from 60GiB, 512 MiB, 1.5g or a whole number; the notation of the command line."""
    if isinstance(value, int) and not isinstance(value, bool):
        count = value
    else:
        match = _SIZE.fullmatch(str(value))
        unit = _UNITS.get(match.group(2).lower()) if match else None
        if match is None or unit is None:
            raise ValueError("a number of bytes, such as 60GiB")
        whole, _, fraction = match.group(1).replace("_", "").partition(".")
        parts = 10 ** len(fraction)
        # Half a byte is rounded up.
        count = int(whole or 0) * unit + (int(fraction or 0) * unit * 2 + parts) // (2 * parts)
    if not 0 <= count <= 1 << 60:
        raise ValueError("a number of bytes, such as 60GiB")
    return count


def positive_bytes(value: Any) -> int:
    count = parse_bytes(value)
    if count == 0:
        raise ValueError("a number of bytes above 0, such as 60GiB")
    return count


def _page(value: Any) -> int:
    count = parse_bytes(value)
    if not (2 << 20) <= count <= (512 << 20) or count & (count - 1):
        raise ValueError("a power of two from 2MiB to 512MiB")
    return count


def _count(value: Any) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", str(value).strip()):
        raise ValueError("a whole number")
    return int(value)


def _flag(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("1 or 0")


def _path(value: Any) -> str:
    path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise ValueError("the name of a file, such as run.gtrace")
    return path


def _folder(value: Any) -> str:
    """A folder, or "" for none."""
    path = os.fspath(value)
    if isinstance(path, str) and path.strip().lower() == "off":
        return ""
    if not isinstance(path, str) or "\0" in path or not os.path.isdir(path):
        raise ValueError("a folder that is there, or off")
    return os.path.abspath(path)


_TENANT = "a tenant's share, such as a:30GiB, a:60% or a:30GiB:borrow"


def parse_tenant(value: Any) -> str:
    """NAME:BYTES or NAME:PART%, with :borrow or without; as the library reads it."""
    name, _, rest = str(value).strip().partition(":")
    size, _, word = rest.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,63}", name) or word not in ("", "borrow") or (word == "" and rest.endswith(":")):
        raise OptionError(f"{value} is not {_TENANT}")
    part = re.fullmatch(r"\s*([0-9]{1,3}(?:\.[0-9]{1,2})?)\s*%\s*", size)
    try:
        if part is None:
            size = str(positive_bytes(size))
        elif 0 < float(part.group(1)) <= 100:
            size = part.group(1) + "%"
        else:
            raise ValueError
    except ValueError:
        raise OptionError(f"{value} is not {_TENANT}") from None
    return f"{name}:{size}" + (":borrow" if word else "")


def _tenant(value: Any) -> str:
    try:
        return parse_tenant(value)
    except OptionError:
        raise ValueError(_TENANT) from None


def _word(words: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        word = str(value).strip().lower()
        if word not in words.split(","):
            raise ValueError("one of " + words.replace(",", ", "))
        return word

    return parse


_TYPES: dict[str, Callable[[Any], Any]] = {
    "bytes": parse_bytes,
    "size": positive_bytes,
    "page": _page,
    "number": _count,
    "switch": _flag,
    "file": _path,
    "folder": _folder,
    "share": _tenant,
}


class Option(NamedTuple):
    name: str
    old: str
    type: str
    unit: str
    default: str
    # Who reads it; the head of options.csv explains the words.
    scope: str
    flag: str
    example: str
    page: str
    help: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def parse(self, value: Any) -> Any:
        parse: Callable[[Any], Any] = _TYPES.get(self.type) or _word(self.type)
        return parse(value)


def _table() -> list[Option]:
    with open(os.path.join(os.path.dirname(__file__), "options.csv"), encoding="utf-8") as file:
        return [Option(*line.rstrip("\n").split("|")) for line in file if not line.startswith("#")]


# All rows; those that are keywords of enable(); those of gapless.weights.
TABLE = _table()
OPTIONS = {row.name: row for row in TABLE if row.scope in ("library", "package", "torch")}
WEIGHTS = {row.name: row for row in TABLE if row.scope == "weights"}
_OLD = {row.old: row.name for row in OPTIONS.values() if row.old}
_OTHER_VARIABLES = {row.variable for row in TABLE if row.name not in OPTIONS}


def current(name: str) -> str:
    """The name of an option that may be given by its old name."""
    return _OLD.get(name, name)


def collect(keywords: Mapping[str, Any], environ: Optional[Mapping[str, str]] = None) -> dict[str, Any]:
    """All options that were set, parsed: variables first, keywords over them. An option's own name wins over its old
    one."""
    chosen = {}
    environ = os.environ if environ is None else environ
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _OTHER_VARIABLES:
            continue
        given = variable[len(PREFIX) :].lower()
        name = current(given)
        if name not in OPTIONS or variable != PREFIX + given.upper():
            raise _unknown("the environment variable " + variable, variable, [row.variable for row in TABLE])
        if given == name or not _is_replaced(variable, OPTIONS[name].variable, environ):
            chosen[name] = _parsed(variable, name, text)
    for given, value in keywords.items():
        name = current(given)
        if name not in OPTIONS:
            raise _unknown(f"the option {given!r}", given, list(OPTIONS))
        if value is not None and (given == name or not _is_replaced(given, name, keywords)):
            chosen[name] = _parsed(given, name, value)
    return chosen


def _is_replaced(old: str, name: str, given: Mapping[str, Any]) -> bool:
    """Warns of an old name. True if the option is given by its own name too."""
    warnings.warn(f"{old} is the old name of {name}: use {name}", GaplessWarning, stacklevel=4)
    return given.get(name) is not None


def text_for_library(chosen: Mapping[str, Any]) -> str:
    """The options that the library reads, as it reads them: key=value;key=value."""
    return ";".join(f"{name}={int(value)}" for name, value in sorted(chosen.items()) if OPTIONS[name].scope == "library")


def _parsed(shown: str, name: str, value: Any) -> Any:
    try:
        return OPTIONS[name].parse(value)
    except ValueError as error:
        raise OptionError(f"{shown}={value} is not {error}") from None


def _unknown(what: str, name: str, known: list[str]) -> OptionError:
    # All names share the prefix, and environment variables differ from keywords in case: compares without both.
    bare = {item.replace(PREFIX, "", 1).lower(): item for item in known}
    nearest = bare[difflib.get_close_matches(name.replace(PREFIX, "", 1).lower(), list(bare), n=1, cutoff=0.0)[0]]
    return OptionError(f"gapless does not know {what}: did you mean {nearest}? There are {', '.join(known)}")
