"""The build backend: maturin, with the libraries that the package loads built first and put into it, and a header.

maturin makes the wheel of one crate, the program's. The package also has libgapless_torch.so, which torch loads,
libgapless_malloc.so, for LD_PRELOAD, and libgapless_loader.so, for gapless.weights, from other crates of the workspace,
and the card's libraries for estimates, which card/build.py compiles. Each hook below builds them and passes the call
on. Everything else (metadata, the archive, the source distribution, the tag) is maturin's. pyproject.toml includes the
libraries and the header in the wheel.

The wheel is tagged linux_ARCH. `cargo xtask dist` lets auditwheel read the symbols of all binaries in it, and gives it
the manylinux tag that they allow. It names another profile of cargo in MATURIN_PEP517_ARGS, for maturin and for the
libraries. `pip install .` uses `release`, so that it finds what `cargo build --release` has built.
"""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Optional

import maturin

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ["libgapless_torch.so", "libgapless_loader.so"] + (["libgapless_malloc.so"] if sys.platform.startswith("linux") else [])
PACKAGE = ROOT / "python" / "gapless"
HEADER = ROOT / "include" / "gapless.h"
HEADERS_IN_PACKAGE = ROOT / "python" / "gapless" / "include"
CARD = ROOT / "python" / "gapless" / "card"

# What needs no library is maturin's own.
build_sdist = maturin.build_sdist
get_requires_for_build_wheel = maturin.get_requires_for_build_wheel
get_requires_for_build_editable = maturin.get_requires_for_build_editable
get_requires_for_build_sdist = maturin.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = maturin.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = maturin.prepare_metadata_for_build_editable

Settings = Optional[Mapping[str, Any]]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None) -> str:
    _build_library()
    HEADERS_IN_PACKAGE.mkdir(exist_ok=True)
    shutil.copy2(HEADER, HEADERS_IN_PACKAGE)
    try:
        name: str = maturin.build_wheel(wheel_directory, config_settings, metadata_directory)
        return name
    finally:
        # A source tree keeps no library that would grow old in it, and one header.
        for library in LIBRARIES:
            (PACKAGE / library).unlink()
        shutil.rmtree(HEADERS_IN_PACKAGE)
        shutil.rmtree(CARD, ignore_errors=True)


def build_editable(wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None) -> str:
    """The package stays where it is, and the library with it: git ignores it there."""
    _build_library()
    name: str = maturin.build_editable(wheel_directory, config_settings, metadata_directory)
    return name


def _told(option: str) -> Optional[str]:
    """The value of an option that maturin is given."""
    words = os.environ.get("MATURIN_PEP517_ARGS", "").split()
    return words[words.index(option) + 1] if option in words[:-1] else None


def _build_library() -> None:
    # The program is built here too. The crates that it shares with the libraries then have the features that they have
    # in `cargo build --release` and in maturin's build of it, so each of them is compiled once.
    packages = ["gapless", "gapless-torch", "gapless-malloc", "gapless-loader"]
    profile, features = _told("--profile") or "release", _told("--features")
    command = ["cargo", "build", "--profile", profile, "--locked", *(word for package in packages for word in ("--package", package))]
    if features:
        command += ["--features", f"gapless/{features}"]
    print("$", " ".join(command), file=sys.stderr, flush=True)
    try:
        subprocess.run(command, cwd=ROOT, check=True)
    except FileNotFoundError:
        raise SystemExit("cargo is not on the PATH: install Rust (https://rustup.rs), or install a wheel that was built elsewhere") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"`{' '.join(command)}` failed with {error.returncode}: its output is above") from None
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    for library in LIBRARIES:
        shutil.copy2(target / profile / library, PACKAGE / library)
    _build_card()


def _build_card() -> None:
    """The card's libraries, on the platform that they are for: elsewhere an estimate says what to do."""
    if sys.platform.startswith("linux") and platform.machine() == "x86_64":
        subprocess.run([sys.executable, str(ROOT / "card" / "build.py"), str(CARD)], check=True)
