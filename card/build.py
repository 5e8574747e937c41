"""Builds the card's libraries: `python3 card/build.py FOLDER`. Both the tests (xtask) and the wheel (python/packaging)
build them here, so that what is tested is what is shipped.

    libcuda.so.1          the driver, and the card's state: preloaded, since the others are not linked to it
    libnvidia-ml.so.1     the management library
    libgapless-card.so    the runtime and the libraries above it: preloaded, so that its functions win
    libnvrtc.so.12, .13   the compiler of kernels, preloaded too: torch looks its functions up in the library of this
                          name, so a function that wins elsewhere does not help

It is C for two reasons: what it stands for is a C ABI, and it has to be in a process before anything else is, without a
runtime of its own. It has no symbol versions: the loader then binds to it whatever release of a library a torch wheel
was linked to, so that one build serves CUDA 12 and 13.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCH = HERE.parent / "torch-bench"

FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]

DRIVER = [
    *(BENCH / "standin" / name for name in ("device.c", "driver_api.c")),
    *(BENCH / "python" / name for name in ("card.c", "cards.c", "contents.c", "driver_api.c", "faults.c", "ipc.c", "proc_address.c")),
    *(HERE / name for name in ("driver_more.c", "echo.c", "notes.c", "properties.c")),
]
ABOVE = [
    BENCH / "python" / "runtime.c",
    *(
        HERE / f"{name}.c"
        for name in ("cublas", "cublaslt", "cudnn", "cudnn_backend", "cudnn_rnn", "cufft", "cusolver", "cusparse", "graph_objects", "nccl", "runtime_more")
    ),
]
COMPILERS = ("libnvrtc.so.12", "libnvrtc.so.13")
NAMES = ("libcuda.so.1", "libnvidia-ml.so.1", "libgapless-card.so", *COMPILERS)


def build(folder: Path) -> None:
    """Writes the libraries into `folder`. A compiler that is missing or fails ends in an error with its output."""
    folder.mkdir(parents=True, exist_ok=True)
    _library(folder, "libcuda.so.1", [*DRIVER, "-lpthread", "-ldl"])
    _library(folder, "libnvidia-ml.so.1", [BENCH / "standin" / "nvml.c"])
    _library(folder, "libgapless-card.so", [*ABOVE, "-lpthread", "-ldl"])
    for name in COMPILERS:
        versions = folder / f"{name}.map"
        versions.write_text(f"{name} {{ global: *; }};\n")
        _library(folder, name, [HERE / "nvrtc.c", f"-Wl,--version-script,{versions}"])
        versions.unlink()


def _library(folder: Path, name: str, rest: "list[object]") -> None:
    compiler = os.environ.get("CC", "cc")
    command = [compiler, *FLAGS, f"-Wl,-soname,{name}", "-o", str(folder / name), *map(str, rest)]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        raise SystemExit(f"the C compiler {compiler!r} was not found: install one (Debian: gcc), or name it in CC") from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{name} was not built: {compiler} failed with {error.returncode}, its output is above") from None


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit("usage: build.py FOLDER")
    build(Path(sys.argv[1]))
