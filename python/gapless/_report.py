"""Reports on recorded runs as Python objects: figures as attributes, text for a terminal, HTML for a notebook.

The program `gapless` does the work; see docs/report.md for what the figures mean. Without a file the run is this
process's own: what torch has recorded so far.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional, Union

from . import _program
from ._errors import GaplessError

File = Union[str, "os.PathLike[str]"]

# Lines that a program has to add so that report() has something to report on.
RECORD = (
    "add these two lines:\n"
    "    torch.cuda.memory._record_memory_history(max_entries=1_000_000)    # before the first allocation\n"
    "    print(gapless.report())                                            # after a few steps"
)


@dataclass(frozen=True)
class Holder:
    """Blocks of one origin that were held at the peak."""

    label: str
    bytes: int
    count: int
    share: float
    kind: str
    module: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """Something that the report noticed; `gapless explain CODE` explains it."""

    code: str
    severity: str
    headline: str
    evidence: tuple[str, ...] = ()
    help: str = ""
    device: Optional[int] = None

    def __str__(self) -> str:
        return f"{self.severity} {self.code} {self.headline}"


@dataclass(frozen=True)
class Device:
    """The figures of one device, in bytes. `peak_reserved` and `fragmentation` are None if the file has no segments."""

    device: int
    peak_allocated: int
    peak_reserved: Optional[int]
    fragmentation: Optional[float]
    kinds: dict[str, int]
    holders: tuple[Holder, ...]
    json: dict[str, Any] = field(repr=False)


class _Answer:
    """An answer of the program, as JSON and as text."""

    def __init__(self, arguments: list[str], answers: tuple[int, ...], keep: Any = None) -> None:
        self._arguments, self._answers = arguments, answers
        # Keeps the folder of a temporary file, because later questions read the file.
        self._keep = keep
        self._text: Optional[str] = None
        self.json: dict[str, Any] = json.loads(self._call("json"))

    def _call(self, form: str, *more: str) -> str:
        return _program.call([*self._arguments, "--format", form, *more], self._answers).stdout

    @property
    def text(self) -> str:
        """The text that the program prints in a terminal, without colours."""
        if self._text is None:
            self._text = self._call("text", "--color", "never")
        return self._text

    def __str__(self) -> str:
        return self.text


class Report(_Answer):
    """Where the memory of a run went. The figures are those of the device that held most; `devices` has all."""

    def __init__(self, file: File, top: int = 10, keep: Any = None) -> None:
        self.path = os.fspath(file)
        super().__init__(["report", self.path, "--top", str(top)], (0,), keep)
        self.devices = tuple(_device(data) for data in self.json["devices"])
        self.findings = tuple(_finding(data) for data in self.json["findings"])

    @property
    def _main(self) -> Device:
        # A report without a device is refused by the program.
        return max(self.devices, key=lambda d: (d.peak_reserved or 0, d.peak_allocated))

    @property
    def peak_allocated(self) -> int:
        """The most bytes of blocks in the program's hands."""
        return self._main.peak_allocated

    @property
    def peak_reserved(self) -> Optional[int]:
        """The most bytes held from the device; None if the file has no segments."""
        return self._main.peak_reserved

    @property
    def fragmentation(self) -> Optional[float]:
        """1 - peak allocated / peak reserved; None if the file has no segments."""
        return self._main.fragmentation

    @property
    def kinds(self) -> dict[str, int]:
        """Bytes by kind at peak allocated: weights, activations and so on. Inferred."""
        return self._main.kinds

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Who held most at peak allocated, the largest first."""
        return self._main.holders

    @property
    def host(self) -> Optional[dict[str, int]]:
        """Pinned host memory, if torch recorded it. It is not part of the other figures."""
        found: Optional[dict[str, int]] = self.json.get("host")
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts that the report had to infer, repair or leave out."""
        return tuple(note["text"] for note in self.json["source"]["notes"])

    def html(self, path: File) -> Path:
        """Writes the whole page, which works without a network, and returns its path."""
        self._call("html", "--output", os.fspath(path))
        return Path(path)

    def show(self, height: int = 800) -> Any:
        """Shows the whole page: in a notebook in the cell, elsewhere in the browser."""
        from ._summary import Page, in_notebook, open_browser

        page = Page(self._call("html"), height)
        if in_notebook():
            return page
        return open_browser(page)

    def _repr_html_(self) -> str:
        from ._summary import summary

        return summary(self)

    def __repr__(self) -> str:
        return f"<gapless.Report of {self.path!r}: peak allocated {self.peak_allocated}, peak reserved {self.peak_reserved}>"


class Diff(_Answer):
    """What changed between two runs: `json` follows schema/gapless.diff.schema.json."""

    def __init__(self, before: File, after: File, top: int) -> None:
        super().__init__(["diff", os.fspath(before), os.fspath(after), "--top", str(top)], (0,))

    def _repr_html_(self) -> str:
        from ._summary import preformatted

        return preformatted(self.text)


class Check(_Answer):
    """Whether a run kept to its budgets. It is true if the run did."""

    def __init__(self, arguments: list[str]) -> None:
        super().__init__(arguments, (0, 1))
        self.passed: bool = self.json["passed"]

    def __bool__(self) -> bool:
        return self.passed

    def _repr_html_(self) -> str:
        from ._summary import preformatted

        return preformatted(self.text)


def report(file: Optional[File] = None, *, top: int = 10) -> Report:
    """Where the memory of a recorded run went. `file` is what `gapless report` reads: a PyTorch snapshot, a .gtrace
    and so on. Without a file, it is what torch has recorded in this process.

    The object shows itself in a notebook; `print(report)` prints the text; `report.html("page.html")` writes the page.
    """
    if file is not None:
        return Report(file, top)
    folder = tempfile.TemporaryDirectory(prefix="gapless-")
    path = os.path.join(folder.name, "snapshot.pickle")
    dump(path)
    return Report(path, top, folder)


def diff(before: File, after: File, *, top: int = 10) -> Diff:
    """What changed between two recorded runs, aligned by their steps."""
    return Diff(before, after, top)


def check(
    file: File,
    *,
    max_peak_reserved: Union[int, str, None] = None,
    max_peak_allocated: Union[int, str, None] = None,
    max_fragmentation: Union[float, str, None] = None,
    max_growth_per_step: Union[int, str, None] = None,
    baseline: Optional[File] = None,
    tolerance: Union[float, str, None] = None,
    config: Optional[File] = None,
) -> Check:
    """Whether a recorded run keeps to budgets: sizes as bytes or "20GiB", shares as 0.15 or "15%".

    `assert gapless.check("run.pickle", max_peak_reserved="20GiB")` is a test of a run.
    """
    arguments = ["check", os.fspath(file)]
    for name, size in (
        ("--max-peak-reserved", max_peak_reserved),
        ("--max-peak-allocated", max_peak_allocated),
        ("--max-growth-per-step", max_growth_per_step),
    ):
        if size is not None:
            # The program needs a unit, and a number from Python is one of bytes.
            arguments += [name, size if isinstance(size, str) else f"{size}B"]
    for name, value in (
        ("--max-fragmentation", max_fragmentation),
        ("--baseline", baseline),
        ("--tolerance", tolerance),
        ("--config", config),
    ):
        if value is not None:
            arguments += [name, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return Check(arguments)


def dump(path: File) -> None:
    """Writes what torch has recorded in this process as a snapshot. If that is nothing, an error says what to add."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise GaplessError(f"no file was given, and this process has not imported torch: name a file, or {RECORD}")
    if not torch.cuda.is_initialized():
        raise GaplessError(f"no file was given, and this process has not used the GPU: name a file, or {RECORD}")
    from . import _session

    try:
        if _session.enabled():
            _session.snapshot(os.fspath(path))
        else:
            torch.cuda.memory._dump_snapshot(os.fspath(path))
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        if isinstance(error, GaplessError):
            raise
        raise GaplessError(f"torch cannot take a snapshot of its memory: {error}") from error
    if not _records(torch):
        raise GaplessError(f"torch has no memory history in this process: {RECORD}")


def _records(torch: Any) -> bool:
    """True if torch records memory history, or has recorded some."""
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if enabled is not None and enabled():
        return True
    return any(torch.cuda.memory._snapshot()["device_traces"])


def _device(data: dict[str, Any]) -> Device:
    return Device(
        device=data["device"],
        peak_allocated=data["peak_allocated"],
        peak_reserved=data["peak_reserved"],
        fragmentation=data["fragmentation"],
        kinds=dict(data["kinds"]["at_peak"]),
        holders=tuple(_holder(holder) for holder in data["holders"]),
        json=data,
    )


def _holder(data: dict[str, Any]) -> Holder:
    return Holder(
        label=data["label"],
        bytes=data["bytes"],
        count=data["count"],
        share=data["share"],
        kind=data["kind"],
        module=data.get("module", ""),
        notes=tuple(data.get("notes", ())),
    )


def _finding(data: dict[str, Any]) -> Finding:
    return Finding(
        code=data["code"],
        severity=data["severity"],
        headline=data["headline"],
        evidence=tuple(data.get("evidence", ())),
        help=data.get("help", ""),
        device=data.get("device"),
    )
