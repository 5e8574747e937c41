"""The process that estimates, seen from the one that asks, which passes its output on and tells the progress.

Progress goes to standard error, first after 5 seconds and then every 10: the note that the process keeps in its folder.
The one that asks prints it, because the other may be in code that lets no thread of Python run.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Optional

from . import seen

_FIRST, _EVERY = 5.0, 10.0
_NOTE, _ROOM = "state", 200


class State:
    """The note of this process for the one that waits for it."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / _NOTE, os.O_CREAT | os.O_WRONLY, 0o600)

    def say(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.pwrite(self._file, text.encode()[:_ROOM].ljust(_ROOM), 0)


def run(command: "list[str]", environment: "dict[str, str]", folder: Path, own_words: bool, told: bool) -> "tuple[int, str]":
    """Its exit code and its standard error, which is passed on if `own_words` says that it is the program's."""
    lines: list[str] = []
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr if own_words else subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        errors="replace",
    )  # fmt: skip
    try:
        reader = threading.Thread(target=_pass_on, args=(process.stderr, lines, own_words), daemon=True)
        reader.start()
        since, wait = time.monotonic(), _FIRST
        while True:
            try:
                code = process.wait(wait)
                break
            except subprocess.TimeoutExpired:
                wait = _EVERY
                if told:
                    print(f"gapless estimate: {time.monotonic() - since:.0f} s: {_state(folder)}", file=sys.stderr, flush=True)
        # Processes that the program left behind may hold the pipe.
        reader.join(5)
    except BaseException:
        process.kill()
        raise
    return code, "".join(lines)


def _pass_on(source: Any, lines: "list[str]", own_words: bool) -> None:
    for line in source:
        lines.append(line)
        if own_words:
            sys.stderr.write(line)


def _state(folder: Path) -> str:
    try:
        return (folder / _NOTE).read_text(encoding="utf-8", errors="replace").strip() or "starting"
    except OSError:
        return "starting torch"


def why(code: int, stderr: str, not_known: int) -> str:
    """Why there is no answer, if the process left none."""
    last = next((line for line in reversed(stderr.strip().splitlines()) if line), "it said nothing")
    if code == not_known:
        told = last.removeprefix("stand-in device: ")
        return f"the estimate stopped: {told}. The program uses a function whose memory is not known; estimate the part of it that does not"
    ended = f"was ended by signal {-code}" if code < 0 else f"ended with {code}"
    return f"the process that estimates {ended}: {last}"


def failed(found: "dict[str, Any]") -> str:
    """Why a program that ended with an error has no answer, and what to do about it."""
    at: Optional[str] = found.get("at")
    told = ("" if found.get("ended") else "the program ended with ") + found["error"] + (f" (at {at})" if at else "")
    decided: dict[str, str] = found.get("decided", {})
    if decided:
        place, answer = next(iter(decided.items()))
        more = f", as {len(decided) - 1} more places did" if len(decided) > 1 else ""
        told += (
            f"\n  Before that, {place} read a value that this card does not have, and got {answer}{more}."
            f"\n  If the error comes from there, say what a GPU would read: --assume {_short(place)}=VALUE"
        )
    elif found.get("reads"):
        row = found["reads"][0]
        told += f"\n  Before that, {row['function']} at {row['place']} read values that this card does not have, and got zeros."
    else:
        told += "\n  It read no value that this card does not have: it most likely ends like this on a GPU, too."
    return seen.plain(told) + "\n  GAPLESS_ESTIMATE_TELL=1 prints the traceback."


def _short(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{os.path.basename(file)}:{line}"
