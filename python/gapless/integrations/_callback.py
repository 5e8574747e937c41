"""The part that callbacks for all trainers share: when to log, and what to leave behind at the end."""

import os
import warnings
from pathlib import Path
from typing import Any, Callable, Literal, Optional, Union

from .. import _report
from .._errors import GaplessError, GaplessWarning, OptionError
from ._figures import figures

File = Union[str, "os.PathLike[str]"]


class Memory:
    """Logs memory figures every `every` steps. At the end it writes a snapshot and a page, if paths were given."""

    def __init__(
        self,
        every: int = 10,
        *,
        prefix: str = "memory/",
        unit: Literal["bytes", "MiB", "GiB"] = "GiB",
        snapshot: Optional[File] = None,
        page: Optional[File] = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(every, int) or every < 1:
            raise OptionError(f"every={every!r}: use a whole number of steps from 1 on")
        self.every, self.prefix, self.unit, self.device = every, prefix, unit, device
        self.snapshot, self.page = snapshot, page
        self._last: Optional[int] = None

    def _due(self, step: int) -> bool:
        """True if this step is to be logged: once, even if the trainer reports it again (gradient accumulation)."""
        if step % self.every or step == self._last:
            return False
        self._last = step
        return True

    def _figures(self) -> dict[str, float]:
        return figures(self.device, prefix=self.prefix, unit=self.unit)

    def _finish(self, rank: int, ranks: int) -> None:
        """Writes what was asked for. A run that has ended well must not fail for its report: a warning says why."""
        for path, write in ((self.snapshot, _snapshot), (self.page, _page)):
            if path is None:
                continue
            try:
                write(of_rank(path, rank, ranks))
            except (GaplessError, OSError) as error:
                warnings.warn(f"{os.fspath(path)} was not written: {error}", GaplessWarning, stacklevel=3)


def of_rank(path: File, rank: int, ranks: int) -> Path:
    """The path for one of several processes: `memory.html` becomes `memory.rank3.html`."""
    own = Path(path)
    return own if ranks < 2 else own.with_name(f"{own.stem}.rank{rank}{own.suffix}")


def _snapshot(path: Path) -> None:
    _report.dump(path)


def _page(path: Path) -> None:
    _report.report().html(path)


def import_base(package: str, names: tuple[str, ...], load: Callable[[str], Any]) -> Any:
    """The first of `names` that can be imported; an error says what to install."""
    for name in names:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            # A broken installation of the package itself must not look like a missing one.
            if error.name is None or name.split(".")[0] != error.name.split(".")[0]:
                raise
    raise ImportError(f"gapless.integrations.{package} needs the package {names[0].split('.')[0]}: run `pip install {names[0].split('.')[0]}`")
