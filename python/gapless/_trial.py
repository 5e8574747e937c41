"""Tries code that may crash, or that starts what must not start in this process, in a forked child.

The child answers in words. A crash, a hang and an early end are a no, with the reason.
"""

import os
import select
import signal
import time
import warnings
from typing import Callable, NoReturn, Optional

# Seconds that a trial may take: long for some calls, short for a program that starts.
_PATIENCE = 20.0

FITS = "fits"


def why_not(what: str, work: Callable[[], str]) -> Optional[str]:
    """None if `work`, called in a child, returns FITS; else what it returned, or how the child ended. `what` is
    tried, for messages."""
    reader, writer = os.pipe()
    try:
        with warnings.catch_warnings():
            # The child calls nothing that takes a lock of another thread, but Python cannot know.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return f"{what} cannot be tried, for no process can be started ({error.strerror})"
    if child == 0:
        _in_child(what, work, writer)
    os.close(writer)
    said = _read(reader, time.monotonic() + _PATIENCE)
    os.close(reader)
    if said is None:
        os.kill(child, signal.SIGKILL)
    try:
        _, status = os.waitpid(child, 0)
    except ChildProcessError:
        # The program has collected the child itself, so that its status is lost: the child's answer decides.
        status = 0
    if said is None:
        return f"the trial of {what} did not end"
    if os.WIFSIGNALED(status):
        return f"the trial of {what} crashed ({signal.Signals(os.WTERMSIG(status)).name})"
    return None if said == FITS else said or f"the trial of {what} ended early"


def _read(reader: int, deadline: float) -> Optional[str]:
    """All that is written to the pipe; None if that takes too long."""
    parts: list[bytes] = []
    while True:
        if not select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return None
        part = os.read(reader, 65536)
        if not part:
            return b"".join(parts).decode("utf-8", "replace")
        parts.append(part)


def _in_child(what: str, work: Callable[[], str], writer: int) -> NoReturn:
    said = f"the trial of {what} failed"
    try:
        # Hides what torch prints about the odd calls of a trial.
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        said = work()
    except BaseException as error:
        said = f"the trial of {what} failed: {type(error).__name__}: {error}"
    finally:
        os.write(writer, said.encode()[:60000])
        os._exit(0)
