"""Ranks of a program stop together: one that goes on alone would wait for messages that the others never send.

The first rank that has seen enough writes into the folder where ranks meet at which step all of them stop: a few steps
on, since a rank that works with others is at most one step away from them. A rank that has ended leaves a file of its
own there, with the reason if it was stopped.

    AGREED      "steps 14 settled"   all ranks stop before their 15th step
    0, 1, ...   "settled"            rank 0 was stopped; empty: it ended by itself
"""

import contextlib
import os
from pathlib import Path
from typing import Optional

_AGREED, _AGAIN, MEET = "agreed", "again", "GAPLESS_ESTIMATE_MEET"
# A rank may be a step ahead of the one that says when to stop, and just about to begin the next.
_AHEAD = 2


def again(variables: "dict[str, str]") -> "dict[str, str]":
    """The variables of a rank that runs once more, as all others do: it meets none that have ended before."""
    if MEET not in variables:
        return {}
    folder = os.path.join(variables[MEET], _AGAIN)
    os.makedirs(folder, exist_ok=True)
    return {MEET: folder}


def gone(folder: str, rank: int) -> None:
    """The process of this rank has ended in any way: no other rank waits for it from now on."""
    for place in (Path(folder), Path(folder, _AGAIN)):
        if place.is_dir():
            (place / str(rank)).touch()


class Together:
    """The ranks that meet in a folder."""

    def __init__(self, folder: str) -> None:
        self._agreed = Path(folder, _AGREED)
        self._folder = folder

    @staticmethod
    def found() -> "Optional[Together]":
        """The ranks that this process belongs to, if it is one of several."""
        folder = os.environ.get(MEET)
        return Together(folder) if folder else None

    def propose(self, kind: str, count: int, why: str) -> None:
        """All are to stop soon after so many `kind` (steps or calls), unless another rank has said so before."""
        own = Path(f"{self._agreed}.{os.getpid()}")
        own.write_text(f"{kind} {count + _AHEAD} {why}", encoding="utf-8")
        # A link appears whole, and only one of them can.
        with contextlib.suppress(FileExistsError):
            os.link(own, self._agreed)
        own.unlink()

    def why(self, kind: str, count: int) -> Optional[str]:
        """Why this rank stops now, after so many; None if it goes on."""
        try:
            agreed, number, why = self._agreed.read_text(encoding="utf-8").split()
        except OSError:
            return None
        return why if agreed == kind and count >= int(number) else None

    def proposed(self) -> bool:
        return self._agreed.exists()

    def end(self, why: Optional[str]) -> None:
        """This rank has ended."""
        Path(self._folder, os.environ["RANK"]).write_text(why or "", encoding="utf-8")

    def ended(self, rank: int) -> bool:
        return Path(self._folder, str(rank)).exists()

    def stopped(self, rank: int) -> Optional[str]:
        """Why a rank was stopped; None if it was not."""
        try:
            return Path(self._folder, str(rank)).read_text(encoding="utf-8") or None
        except OSError:
            return None

    def all_ended(self) -> bool:
        """True if no process needs this rank: all ranks have ended, or the process that asks has."""
        return not os.path.isdir(self._folder) or all(self.ended(rank) for rank in range(int(os.environ["WORLD_SIZE"])))
