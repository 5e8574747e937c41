"""The answer of an estimate: figures as attributes, text for a terminal, the report's page, and torch's snapshot."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from .. import _program
from . import seen, trained_in
from .bars import at_least, bars
from .cards import Card

SCHEMA = "gapless.estimate/1"
# The share of the card that stays free if something is said to fit.
_FREE = 0.02


@dataclass(frozen=True)
class Error:
    """How far off the figures may be, in bytes, up and down."""

    peak_allocated: int
    peak_reserved: int


class Estimate:
    """The memory of a program on a card. All sizes are bytes.

    `kinds` and `modules` are the account at the peak; `phases` has the peak of each phase; `assumptions` are sentences
    that say what had to be assumed, and what read values that are not known.
    """

    def __init__(self, found: "dict[str, Any]", card: Card, snapshot: bytes, fits_after_retry: Optional[bool] = None) -> None:
        share = bars(found, card)
        self.card = card
        self.peak_allocated: int = found["peak_allocated"]
        self.peak_reserved: int = found["peak_reserved"]
        self.error = Error(round(share["peak_allocated"] * self.peak_allocated), round(share["peak_reserved"] * self.peak_reserved))
        self.kinds: dict[str, int] = found["kinds"]
        self.modules: list[dict[str, Any]] = found["modules"]
        self.phases: list[dict[str, Any]] = found["phases"]
        self.assumptions = _sentences(found, card)
        self.snapshot = snapshot
        self._found, self._bars, self._retry = found, share, fits_after_retry
        # How often the program ran out of memory and went on, because it adapts to the card.
        self._caught: int = found.get("out_of_memory_caught", 0)

    @property
    def limit(self) -> int:
        """The bytes that a program may hold of the card: its memory less the context, and less 2 %."""
        return int(self.card.usable * (1 - _FREE))

    @property
    def fits(self) -> bool:
        """True if it fits with its error bar and 2 % free, if need be with torch's cache emptied on the way; and within
        the budget of `--train-in`, if one was asked for."""
        return self._fits_card and trained_in.fits(self._found)

    @property
    def _fits_card(self) -> bool:
        if self.peak_reserved + self.error.peak_reserved <= self.limit or self._caught:
            return True
        return bool(self._retry) and self.peak_allocated + self.error.peak_allocated <= self.limit

    @property
    def at_least(self) -> bool:
        """True if more may come than was seen: the program was stopped, a loop may make more rounds, or masks of
        unknown numbers chose nothing."""
        return at_least(self._found)

    @property
    def undecided(self) -> bool:
        """True if only a run with the card's real size can say whether it fits: the cache decides."""
        over = self.peak_reserved + self.error.peak_reserved > self.limit
        return self._retry is None and over and self.peak_allocated + self.error.peak_allocated <= self.limit

    @property
    def _needs_cache_emptied(self) -> bool:
        return self._fits_card and not self._caught and self.peak_reserved + self.error.peak_reserved > self.limit

    @property
    def json(self) -> "dict[str, Any]":
        return {
            "schema": SCHEMA,
            "device": self.card.name,
            "device_measured": self.card.measured,
            "memory": self.card.memory,
            "limit": self.limit,
            "fits": self.fits,
            "needs_cache_emptied": self._needs_cache_emptied,
            "error": {"peak_allocated": self.error.peak_allocated, "peak_reserved": self.error.peak_reserved},
            "bars": self._bars,
            "at_least": self.at_least,
            "assumptions": self.assumptions,
            **self._found,
        }

    @property
    def text(self) -> str:
        verdict = ("fits as far as it ran" if self._found.get("stopped") else "fits") if self._fits_card else "does not fit"
        if self._needs_cache_emptied:
            verdict = "fits, but torch has to empty its cache"
        if self._caught:
            verdict = f"fits, after the program ran out of memory {_times(self._caught)} and went on by itself"
        sign = "or more, ± " if self.at_least else "± "
        lines = [
            f"{verdict} on {self.card.title}: {_size(self.peak_reserved)} of {_size(self.limit)} that a program may hold",
            f"  peak allocated  {_size(self.peak_allocated):>10}  {sign}{self._bars['peak_allocated']:.2%}",
            f"  peak reserved   {_size(self.peak_reserved):>10}  {sign}{self._bars['peak_reserved']:.2%}",
        ]
        lines += [f"  {told}" for told in (*seen.told(self._found), *trained_in.told(self._found))]
        lines.append("  At the peak")
        held = sum(self.kinds.values()) or 1
        lines += [f"    {kind:<28}{_size(size):>10}  {size / held:4.0%}" for kind, size in self.kinds.items() if size]
        largest = [row for row in self.modules if row["kind"].startswith("activations") and row["module"]][:5]
        if largest:
            lines.append("  Modules with the most activations")
            # Modules differ at the end of their paths, so a long path loses its beginning.
            width = min(max(28, *(len(row["module"]) + 1 for row in largest)), 60)
            lines += [f"    {_end(row['module'], width - 1):<{width}}{_size(row['bytes']):>10}" for row in largest]
        lines += [f"  note: {sentence}" for sentence in self.assumptions]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<gapless.Estimate: peak allocated {self.peak_allocated}, peak reserved {self.peak_reserved}, fits {self.fits} on {self.card.name}>"

    def save(self, path: Any) -> Path:
        """Writes the snapshot, which every verb of `gapless` and torch's own viewer read."""
        Path(path).write_bytes(self.snapshot)
        return Path(path)

    def html(self, path: Any = None) -> Any:
        """The report's page of the estimated run: its text, or written to `path`."""
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            file = self.save(Path(folder) / "snapshot.pickle")
            page = _program.call(["report", str(file), "--format", "html"]).stdout
        if path is None:
            return page
        Path(path).write_text(page, encoding="utf-8")
        return Path(path)

    def dumps(self) -> str:
        return json.dumps(self.json)


def _sentences(found: "dict[str, Any]", card: Card) -> "list[str]":
    said = list(found.get("assumed", []))
    if not card.measured:
        said.append(f"the properties of {card.title} are published figures: nothing was measured on a card of this kind")
    for note in found["notes"]:
        if note["evidence"] == "assumed":
            said.append(f"{note['function']}: its workspace is not known; {_size(note['largest'])} is assumed ({note['calls']} calls)")
    for choice in found["choices"]:
        assumed = f"an even choice is assumed ({_size(choice['bytes'])} each time)"
        if choice["function"].startswith("the size of"):
            assumed = f"nothing was chosen here, and on a card up to {_size(choice['bytes'])}"
        said.append(f"{choice['function']} at {choice['place']} depends on values that are not known: {assumed}")
    for row in found.get("sampled", []):
        said.append(f"{row['function']} at {row['place']} chose by a mask: its size is that of one example of the data")
    if found.get("searches"):
        said.append("LBFGS decides by the loss, which is not known, how often it evaluates the model: its history may be shorter here than on a card")
    return [seen.plain(sentence) for sentence in said + seen.reads(found)]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _end(path: str, width: int) -> str:
    return path if len(path) <= width else f"...{path[3 - width :]}"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if unit == "B" else f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} GiB"
