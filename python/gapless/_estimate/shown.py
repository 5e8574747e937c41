"""The text of an answer as its reader can see it: within the columns of a line, and in ASCII if nothing else is shown.

The rules are those of the program's other verbs (crates/gapless/src/output.rs): COLUMNS says how wide, or the terminal;
80 columns without either. A locale that is set and has no UTF-8 gets ASCII, and so does a dumb terminal.
"""

import os
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, Optional

_COLUMNS, _NARROWEST, _WIDEST = 80, 40, 120
_ASCII = {"→": "->", "←": "<-", "±": "+-", "≤": "<=", "≥": ">=", "·": "-", "–": "-", "—": "-", "×": "x", "…": "~", "‘": "'", "’": "'", "“": '"', "”": '"'}
# A figure and its unit stay on one line.
_WORD = re.compile(r"\S*\d (?:B|KiB|MiB|GiB)\b\S*|\S+")


def shown(text: str, out: Any) -> str:
    """The text for a stream that it is printed to."""
    return fitted(ascii_of(text) if is_ascii(out) else text, columns(out))


def columns(out: Any, surroundings: "Optional[Mapping[str, str]]" = None) -> int:
    said = (os.environ if surroundings is None else surroundings).get("COLUMNS", "").strip()
    width = int(said) if said.isascii() and said.isdigit() else 0
    if not width and out.isatty():
        try:
            width = os.get_terminal_size(out.fileno()).columns
        except OSError:
            # A terminal that does not know its size.
            width = 0
    return min(max(width or _COLUMNS, _NARROWEST), _WIDEST)


def is_ascii(out: Any, surroundings: "Optional[Mapping[str, str]]" = None) -> bool:
    encoding = (getattr(out, "encoding", None) or "ascii").lower().replace("-", "").replace("_", "")
    given = _own_environment() if surroundings is None else surroundings
    locale = given.get("LC_ALL") or given.get("LC_CTYPE") or given.get("LANG")
    charset = (locale or "").split("@")[0].rpartition(".")[2].lower().replace("-", "")
    return encoding != "utf8" or (bool(locale) and charset != "utf8") or given.get("TERM") == "dumb"


def _own_environment() -> "Mapping[str, str]":
    """The environment that this process was started with: Python itself sets LC_CTYPE if the locale is C."""
    try:
        with open("/proc/self/environ", "rb") as file:
            rows = [row.decode(errors="replace").partition("=") for row in file.read().split(b"\0") if row]
    except OSError:
        return os.environ
    return {name: value for name, _, value in rows}


def ascii_of(text: str) -> str:
    return "".join(char if char.isascii() else _ASCII.get(char, "?") for char in text)


def fitted(text: str, width: int) -> str:
    """A line that is wider goes on below, further in. Words stay whole, because a path or a command is copied."""
    return "\n".join(line if _wide(line) <= width else _broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    lead = len(line) - len(line.lstrip(" "))
    below = " " * min(lead + 2, width // 2)
    lines, last = [], lead
    made = " " * lead
    for found in _WORD.finditer(line):
        gap = line[last : found.start()]
        if made.strip() and _wide(made) + len(gap) + _wide(found[0]) > width:
            lines.append(made)
            made, gap = below, ""
        made += gap + found[0]
        last = found.end()
    return "\n".join([*lines, made])


def _wide(text: str) -> int:
    """The columns that a text takes: characters of East Asia take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)
