"""The program `gapless` that comes with this package: where it is, and how it is called.

Its exit codes are 0 (done), 1 (the answer is no) and 2 (an error, told on standard error).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from ._errors import GaplessError


def program() -> str:
    """The program: GAPLESS_PROGRAM, beside this interpreter, or on the path."""
    named = os.environ.get("GAPLESS_PROGRAM")
    beside = os.path.join(os.path.dirname(sys.executable), "gapless")
    found = named or (beside if os.path.isfile(beside) else shutil.which("gapless"))
    if not found or not os.path.isfile(found):
        raise GaplessError("the program `gapless` was not found: run `pip install .` in the repository, or name it in GAPLESS_PROGRAM")
    return found


def environment() -> dict[str, str]:
    """The environment of the program's processes. COLUMNS would wrap the lines of errors, which become exceptions."""
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"}


def call(arguments: Sequence[str], answers: tuple[int, ...] = (0,)) -> "subprocess.CompletedProcess[str]":
    """Runs the program. An exit code that is none of `answers` becomes a GaplessError with the program's message."""
    try:
        done = subprocess.run(
            [program(), *arguments], env=environment(), capture_output=True, text=True, encoding="utf-8", stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise GaplessError(f"the program `gapless` cannot be started: {error}") from None
    if done.returncode not in answers:
        raise GaplessError(message(done.stderr) or f"`gapless {arguments[0]}` ended with {done.returncode}")
    return done


def message(stderr: str) -> str:
    """The error in the program's standard error, without the word "error" and without warnings before it."""
    text = stderr.strip()
    at = 0 if text.startswith("error: ") else text.find("\nerror: ") + 1
    return text[at:].removeprefix("error: ") if at > 0 or text.startswith("error: ") else text
