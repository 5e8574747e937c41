"""Options: keywords of enable(), and GAPLESS_* environment variables of the same names in capitals.

A keyword wins over its variable. A name that does not exist is an error that names the nearest, since an option that
is silently ignored looks like one that does not help. Values become numbers here, so that the library only ever reads
bytes.
"""

import difflib
import os
import re
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple, Optional

from ._errors import OptionError

PREFIX = "GAPLESS_"
# Variables that are no options: which driver, library, program and interpreter to use, whether `gapless run` started
# this process, where processes meet, which one records, and the card of an estimate.
_OTHER_VARIABLES = (
    "DRIVER",
    "LIBRARY",
    "LOADER",
    "WEIGHTS",
    "PROGRAM",
    "RUN",
    "RUN_DIR",
    "SLEEP_DIR",
    "SLEEP_GUARD",
    "RECORD_OWNER",
    "CARD",
    "CARDS",
    "CARD_LIBRARIES",
    "ESTIMATE_MEET",
    "PYTHON",
    # The host's allocator reads these itself, before the program begins.
    "HOST_CHECK",
    "HOST_HUGE",
    "HOST_LIBRARY",
    "HOST_LIMIT",
    "HOST_LIMIT_FILE",
    "HOST_LIMIT_GPU",
    "HOST_RECORD",
    "HOST_RECORD_EVERY",
    "HOST_RECORD_PID",
    "HOST_STATS",
)

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


def _stacks(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("python", "off"):
        return word == "python"
    raise ValueError("python or off")


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


class Option(NamedTuple):
    parse: Callable[[Any], Any]
    # True: the library reads it. False: it is for Python alone.
    native: bool
    help: str


OPTIONS: dict[str, Option] = {
    "reserve": Option(parse_bytes, True, "take this much of each device's memory when CUDA starts"),
    "limit": Option(positive_bytes, True, "hold at most this much of each device's memory"),
    "budget": Option(positive_bytes, True, "hold at most this much of each device's memory, context and libraries included"),
    "tenant": Option(_tenant, False, "share each device with others of this user: a:30GiB, a:60% or a:30GiB:borrow"),
    "stream_weights": Option(positive_bytes, False, "keep at most this much of weights on the card; the rest streams from the host (docs/streaming.md)"),
    "largest_page": Option(_page, True, "the largest physical page that is taken, 2MiB to 512MiB"),
    "slack": Option(_count, True, "what may be held beyond the live peak before free pages are mapped again, in thousandths"),
    "windows": Option(_count, True, "address windows that stay mapped for the next request of their size"),
    "graph_windows": Option(_flag, True, "map free pages of graphs' pools and MemPools a second time too (1)"),
    "lending": Option(_flag, True, "let a stream use memory that another one freed, once no work uses it any more (1)"),
    "run_ahead": Option(parse_bytes, True, "wait for other streams instead of taking new memory if freed tensors wait for them with more than this"),
    "plans": Option(_flag, True, "serve steps that repeat from a plan (1)"),
    "record": Option(_path, False, "write every allocation and free to this file, which gapless report and the others open"),
    "record_stacks": Option(_stacks, False, "python: with the Python lines that asked; off: without (off)"),
    "record_limit": Option(positive_bytes, False, "what the recording may take on disk: the newest is kept"),
    "oom_dir": Option(_folder, False, "where a failed request leaves its last events (the current folder); off: nowhere"),
    "check": Option(_flag, True, "fill freed memory, and report a write to it before it is used again; slow (0)"),
    "check_bytes": Option(positive_bytes, True, "with check: fill and look at this much of each block, at both ends (all of it)"),
    "overlay": Option(_flag, False, "answer torch's own memory tools natively where the build of torch is known (1)"),
    "pages": Option(_flag, True, "show this process to gapless top and gapless metrics of the same user (1)"),
    "stats": Option(_flag, False, "print one line about memory at exit (0)"),
}


def collect(keywords: Mapping[str, Any], environ: Optional[Mapping[str, str]] = None) -> dict[str, Any]:
    """All options that were set, parsed: variables first, keywords over them."""
    chosen = {}
    for variable, text in sorted((os.environ if environ is None else environ).items()):
        if not variable.startswith(PREFIX) or variable[len(PREFIX) :] in _OTHER_VARIABLES:
            continue
        name = variable[len(PREFIX) :].lower()
        if name not in OPTIONS or variable != PREFIX + name.upper():
            raise _unknown("the environment variable " + variable, variable, _variables())
        chosen[name] = _parsed(variable, name, text)
    for name, value in keywords.items():
        if name not in OPTIONS:
            raise _unknown(f"the option {name!r}", name, list(OPTIONS))
        if value is not None:
            chosen[name] = _parsed(name, name, value)
    return chosen


def text_for_library(chosen: Mapping[str, Any]) -> str:
    """The options that the library reads, as it reads them: key=value;key=value."""
    return ";".join(f"{name}={int(value)}" for name, value in sorted(chosen.items()) if OPTIONS[name].native)


def _variables() -> list[str]:
    return [PREFIX + name.upper() for name in OPTIONS] + [PREFIX + name for name in _OTHER_VARIABLES]


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
