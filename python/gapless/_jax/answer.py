"""The answer of an estimate of a JAX program: figures as attributes, text for a terminal, the requests as a file."""

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from .. import _program
from .._estimate.cards import Card
from .ahead import Program
from .watch import Watch

SCHEMA = "gapless.estimate-jax/1"
# The share of the card that XLA takes at its start, unless XLA_PYTHON_CLIENT_MEM_FRACTION says another.
SHARE = 0.75


@dataclass
class Device:
    """One device. `peak` is what `peak_bytes_in_use` of memory_stats() will say; `held` what the allocator takes from
    the card for it if it does not preallocate."""

    number: int
    peak: int
    held: int
    # The program whose call makes the peak, and what it is made of.
    at: str = ""
    arrays: int = 0
    temporaries: int = 0
    outputs: int = 0
    failed: "Optional[int]" = None


@dataclass
class JaxEstimate:
    """The memory of a JAX program on a card. All sizes are bytes of one device."""

    card: Card
    devices: "list[Device]"
    programs: "list[dict[str, Any]]"
    seconds: float
    error: float
    notes: "list[str]" = field(default_factory=list)
    share: float = SHARE
    preallocate: bool = True
    requests: str = ""
    dumps: "list[str]" = field(default_factory=list)
    # True if kernels that only the card chooses may take more.
    at_least: bool = False
    # By which share the peak may be below the figure.
    error_below: float = 0.0

    @property
    def peak(self) -> int:
        """The peak of the device that holds the most."""
        return max((device.peak for device in self.devices), default=0)

    @property
    def limit(self) -> int:
        """The bytes that XLA's allocator may take of the card."""
        unit = 2 << 20
        return -(-int(self.card.memory * self.share) // unit) * unit

    @property
    def fits(self) -> bool:
        return self.peak * (1 + self.error) <= self.limit and all(device.failed is None for device in self.devices)

    @property
    def json(self) -> "dict[str, Any]":
        return {
            "schema": SCHEMA,
            "device": self.card.name,
            "device_measured": self.card.measured,
            "memory": self.card.memory,
            "limit": self.limit,
            "preallocates": self.preallocate,
            "fits": self.fits,
            "peak_bytes_in_use": self.peak,
            "error": self.error,
            "error_below": self.error_below,
            "at_least": self.at_least,
            "seconds": round(self.seconds, 2),
            "devices": [vars(device) for device in self.devices],
            "programs": self.programs,
            "notes": self.notes,
        }

    def dumps_json(self) -> str:
        return json.dumps(self.json, indent=1)

    def save(self, path: Any) -> Path:
        """Writes the requests of the first device as a CSV, which `gapless report` and `gapless replay` read."""
        Path(path).write_text(self.requests, encoding="utf-8")
        return Path(path)

    @property
    def text(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        bar = f"+{self.error:.0%} -{self.error_below:.0%}" if self.error_below > self.error else f"± {self.error:.0%}"
        sign = f"{'or more, ' if self.at_least else ''}{bar}"
        lines = [
            f"{verdict} on {self.card.title}: {in_words(self.peak)} {sign} of the {in_words(self.limit)} that XLA's allocator may take",
            f"  compiled {_count(len(self.programs), 'program')} without a card in {self.seconds:.1f} s",
        ]
        shown = self.devices if len({device.peak for device in self.devices}) > 1 else self.devices[:1]
        for device in shown:
            which = f"device {device.number}" if len(shown) > 1 else (f"each of {len(self.devices)} devices" if len(self.devices) > 1 else "at the peak")
            lines.append(f"  {which:<16}{in_words(device.peak):>10}  in {device.at or 'no program'}")
            for what, size in (("arrays that live", device.arrays), ("its temporaries", device.temporaries), ("its outputs", device.outputs)):
                if size:
                    lines.append(f"    {what:<18}{in_words(size):>10}")
            if device.failed is not None:
                lines.append(f"    a request of {in_words(device.failed)} fails: the allocator has no gap of that size")
        lines.append("  Programs            calls   arguments  temporaries     outputs     donated")
        for row in sorted(self.programs, key=lambda row: -int(row["peak"]))[:8]:
            sizes = [in_words(row[key]) for key in ("arguments", "temporaries", "outputs", "aliased")]
            lines.append(f"    {row['name'][:16]:<16}{row['calls']:>7}{sizes[0]:>12}{sizes[1]:>13}{sizes[2]:>12}{sizes[3]:>12}")
        if self.preallocate:
            lines.append(
                f"  nvidia-smi will show {in_words(self.limit)} and the context: XLA takes {self.share:.0%} of the card at its start. "
                "XLA_PYTHON_CLIENT_PREALLOCATE=false takes memory as it is needed"
            )
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text


def requests_of(watch: Watch, device: int) -> str:
    """The requests of a device as MiniMalloc's rows."""
    end = watch.tick()
    rows = [f"{_plain(r.what)},{r.start},{end if r.end is None else r.end},{r.size}" for r in watch.requests[device]]
    return "\n".join(["id,lower,upper,size", *rows, ""])


def placed(requests: str, card: Card, share: float, preallocate: bool) -> "dict[str, Any]":
    """The outcome of the requests on XLA's allocator, by `gapless replay`."""
    settings = f"bfc:preallocate:{share:g}" if preallocate else f"bfc:fraction:{share:g}"
    with tempfile.TemporaryDirectory(prefix="gapless-jax-") as folder:
        file = os.path.join(folder, "requests.csv")
        Path(file).write_text(requests, encoding="utf-8")
        done = _program.call(["replay", file, "--with", settings, "--capacity", f"{card.memory}B", "--format", "json"], answers=(0, 1))
    run: dict[str, Any] = json.loads(done.stdout)["runs"][0]
    return run


def at_peak(watch: Watch, device: int) -> "tuple[str, dict[str, int]]":
    """The call at which the device holds the most, and the bytes by what they are."""
    changes: list[tuple[int, int, int]] = []
    for at, request in enumerate(watch.requests[device]):
        changes.append((request.start, 1, at))
        if request.end is not None:
            changes.append((request.end, 0, at))
    held: dict[str, int] = {"arrays": 0, "temporaries": 0, "outputs": 0}
    best, name, now = (0, dict(held)), "", 0
    for _, born, at in sorted(changes):
        request = watch.requests[device][at]
        word, _, program = request.what.partition(" of ")
        key = "temporaries" if word == "temporary" else "arrays"
        sign = 1 if born else -1
        held[key] += sign * request.size
        now += sign * request.size
        if now > best[0]:
            best, name = (now, dict(held)), program if program else name
    return name, best[1]


def rows_of(watch: Watch) -> "list[dict[str, Any]]":
    def row(program: Program) -> "dict[str, Any]":
        keys = ("name", "arguments", "outputs", "aliased", "temporaries", "peak", "host", "seconds")
        return {**{key: getattr(program, key) for key in keys}, "calls": sum(call is program for call in watch.calls)}

    return [row(program) for program in watch.programs.values()]


def _plain(text: str) -> str:
    return text.replace(",", " ").replace('"', " ").replace("\n", " ")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def in_words(size: float) -> str:
    if size < 1024:
        return f"{int(size)} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 999.5 or unit == "TiB":
            return f"{size:.3g} {unit}"
    return ""
