"""The card: its libraries, the properties of each kind, and the environment of a process that runs on it."""

import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from .._errors import GaplessError

_PACKAGE = Path(__file__).resolve().parents[1]
# In the wheel the libraries lie beside the package's modules.
_LIBRARIES = _PACKAGE / "card"
_PROPERTIES = _PACKAGE / "cards"

PRELOADED = "libgapless-card.so"
# More than any program asks for: if a program does not fit, the figures say so, and it does not end early.
ENDLESS = 1 << 41


@dataclass(frozen=True)
class Card:
    """A kind of card. `outside` are the bytes of the context and the libraries beside torch."""

    name: str
    file: Path
    title: str
    memory: int
    outside: int
    measured: bool

    @property
    def usable(self) -> int:
        """The bytes of it that torch's allocator can hold."""
        return self.memory - self.outside


def names() -> "tuple[str, ...]":
    return tuple(sorted(file.stem for file in _PROPERTIES.glob("*.card")))


def card(name: str) -> Card:
    """The card of that name; if there is none, the error lists the known ones."""
    file = _PROPERTIES / f"{name.lower()}.card"
    if name.lower() not in names():
        raise GaplessError(f"no card is called {name!r}: known are {', '.join(names())}")
    found: dict[str, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(" ")
        if key in ("name", "memory", "outside", "measured"):
            found[key] = value
    return Card(name.lower(), file, found["name"], int(found["memory"]), int(found["outside"]), found["measured"] == "yes")


def libraries() -> Path:
    """The folder with the card's libraries: GAPLESS_CARD_LIBRARIES, or the one in this package."""
    if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
        raise GaplessError(
            f"an estimate runs torch's CUDA build, which is for Linux on x86-64, and this is {sys.platform} on {platform.machine()}: "
            "run it there (a container without a GPU will do), or use `gapless fit`"
        )
    folder = Path(os.environ.get("GAPLESS_CARD_LIBRARIES") or _LIBRARIES)
    if not (folder / PRELOADED).is_file():
        raise GaplessError(f"{folder} has no {PRELOADED}: run `pip install .` in the repository, or name the folder in GAPLESS_CARD_LIBRARIES")
    return folder


def environment(kind: Card, capacity: Optional[int] = None, count: int = 1) -> "dict[str, str]":
    """The environment of a process whose GPU is this card. `capacity` limits the allocations on it."""
    folder = libraries()
    changed = dict(os.environ)
    # torch's own allocator is the one that is estimated, so no other tool may replace it.
    for key in [key for key in changed if key.startswith("STANDIN_") or key in ("GAPLESS_RUN", "CUDA_VISIBLE_DEVICES")]:
        del changed[key]
    preloaded = [str(folder / name) for name in ("libcuda.so.1", PRELOADED, f"libnvrtc.so.{cuda_major()}")]
    changed["LD_PRELOAD"] = ":".join([*preloaded, *filter(None, [os.environ.get("LD_PRELOAD")])])
    changed["LD_LIBRARY_PATH"] = ":".join([str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    changed["PYTHONPATH"] = ":".join([str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    changed["GAPLESS_CARD"] = str(kind.file)
    changed["GAPLESS_CARDS"] = str(count)
    changed["STANDIN_CAPACITY"] = str(ENDLESS if capacity is None else capacity)
    return changed


def cuda_major() -> str:
    """The release of CUDA that the installed torch was built for, without importing torch."""
    import importlib.util

    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise GaplessError(
            f"torch is not installed for {sys.executable}: an estimate runs torch itself; install its CUDA build (`pip install torch`), "
            "or name the Python that has it in GAPLESS_PYTHON"
        )
    version = Path(next(iter(spec.submodule_search_locations))) / "version.py"
    line = next((line for line in version.read_text(encoding="utf-8").splitlines() if line.startswith("cuda")), "")
    major = line.partition("=")[2].strip().strip("'\"").split(".")[0]
    if not major.isdigit():
        raise GaplessError(
            "the installed torch has no CUDA: an estimate runs torch's CUDA code, which needs no GPU but the CUDA build; "
            "on Linux `pip install torch` installs it (the wheels of the `cpu` index do not have it)"
        )
    if major not in ("12", "13"):
        raise GaplessError(f"the installed torch was built for CUDA {major}: estimates are known to work with builds for CUDA 12 and 13")
    return major
