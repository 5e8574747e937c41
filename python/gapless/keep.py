"""`gapless keep model.safetensors [--name N]`, or `python -m gapless.keep`: holds weights on a GPU for other processes.

It copies the tensors of one or more safetensors files to the GPU, shares them, prints the name or handle for
gapless.attach() on standard output, and waits. SIGTERM or Ctrl-C ends it; processes that have attached keep the memory.
It needs no torch. Nothing in a file is used before it was checked.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import threading
from typing import Any, BinaryIO, NamedTuple, NoReturn, Optional

from . import _memory, _share
from ._errors import GaplessError
from ._stats import size_text

# The names of safetensors, and torch's with the bytes of an element.
DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I16": ("int16", 2),
    "U16": ("uint16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "I32": ("int32", 4),
    "U32": ("uint32", 4),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "I64": ("int64", 8),
    "U64": ("uint64", 8),
    "C64": ("complex64", 8),
}
_MOST_HEADER = 100 << 20
# The alignment of torch's allocations.
_ALIGNMENT = 512
_PIECE = 64 << 20


class Part(NamedTuple):
    """A tensor in a file: where its bytes are, and where they go."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


def header(file: BinaryIO, path: str) -> list[Part]:
    """The tensors of a safetensors file, by their place in it."""

    def bad(why: str) -> GaplessError:
        return GaplessError(f"{path} is not a safetensors file that can be kept: {why}")

    total = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if total < 8 or length > min(_MOST_HEADER, total - 8):
        raise bad(f"its header of {length} bytes is larger than the file, or than 100 MiB")
    try:
        said = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise bad(f"its header is not JSON ({error})") from None
    if not isinstance(said, dict):
        raise bad("its header is not an object")
    parts = []
    for name, about in said.items():
        if name == "__metadata__":
            continue
        if not isinstance(about, dict):
            raise bad(f"tensor {name!r} is not an object")
        dtype: Any = about.get("dtype")
        shape: Any = about.get("shape")
        offsets: Any = about.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise bad(f"tensor {name!r} has the dtype {dtype!r}, which is none of {', '.join(DTYPES)}")
        if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
            raise bad(f"tensor {name!r} has no shape, or no offsets")
        begin, end = offsets
        wanted = DTYPES[dtype][1]
        for size in shape:
            wanted *= size
        if not begin <= end <= total - 8 - length or end - begin != wanted:
            raise bad(f"tensor {name!r} has the bytes {begin} to {end} of {total - 8 - length}, and needs {wanted}")
        parts.append(Part(name, DTYPES[dtype][0], tuple(shape), 8 + length + begin, wanted))
    return sorted(parts, key=lambda part: part.begin)


def _whole(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 50 for n in numbers)


def files_of(paths: list[str]) -> list[str]:
    """The files that were named, and those in folders that were."""
    found: list[str] = []
    for path in paths:
        if os.path.isdir(path):
            inside = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
            if not inside:
                raise GaplessError(f"{path} has no .safetensors file")
            found.extend(os.path.join(path, name) for name in inside)
        elif os.path.isfile(path):
            found.append(path)
        else:
            raise GaplessError(f"{path}: no such file")
    return found


def load(paths: list[str], device: int) -> tuple[int, int, list[_share.Spec]]:
    """Copies all tensors of the files to the GPU: the address, the bytes, and the tensors, in one storage."""
    plans: list[tuple[str, list[tuple[Part, int]]]] = []
    seen: dict[str, str] = {}
    specs, total = [], 0
    for path in paths:
        try:
            with open(path, "rb") as file:
                parts = header(file, path)
        except OSError as error:
            raise GaplessError(f"{path} cannot be read: {error.strerror}") from None
        placed = []
        for part in parts:
            if part.name in seen:
                raise GaplessError(f"tensor {part.name!r} is in {seen[part.name]} and in {path}: name files of one model")
            seen[part.name] = path
            placed.append((part, total))
            itemsize = next(size for name, size in DTYPES.values() if name == part.dtype)
            strides, step = [], 1
            for size in reversed(part.shape):
                strides.append(step)
                step *= size
            specs.append(_share.Spec(part.name, 0, part.dtype, total // itemsize, part.shape, tuple(reversed(strides))))
            total += -(-part.size // _ALIGNMENT) * _ALIGNMENT
        plans.append((path, placed))
    if not total:
        raise GaplessError(f"there are no tensors with elements in {', '.join(paths)}")
    library = _memory._started()
    address = _memory.allocate(total, device, 0)
    try:
        _copy(library, device, address, plans)
    except BaseException:
        _memory.free(address)
        raise
    return address, total, specs


def _copy(library: Any, device: int, address: int, plans: list[tuple[str, list[tuple[Part, int]]]]) -> None:
    staging = library.optional("gapless_host_alloc", device, _PIECE, 0)
    if not staging:
        raise GaplessError(library.last_error())
    try:
        room = memoryview((ctypes.c_uint8 * _PIECE).from_address(staging)).cast("B")
        for path, placed in plans:
            with open(path, "rb", buffering=0) as file:
                for part, place in placed:
                    file.seek(part.begin)
                    done = 0
                    while done < part.size:
                        count = file.readinto(room[: min(_PIECE, part.size - done)])
                        if not count:
                            raise GaplessError(f"{path} became shorter while it was read")
                        if library.optional("gapless_upload", device, address + place + done, staging, count) != 0:
                            raise GaplessError(f"tensor {part.name!r} was not copied to cuda:{device}: {library.last_error()}")
                        done += count
    except OSError as error:
        raise GaplessError(f"a file cannot be read: {error}") from None
    finally:
        library.optional("gapless_host_free", staging)
        library.optional("gapless_host_trim")


def keep(paths: list[str], name: Optional[str], device: int, until: threading.Event) -> None:
    """Loads and shares the files, prints the name or handle, and waits."""
    files = files_of(paths)
    address, total, specs = load(files, device)
    library = _memory._started()
    handle = _share.offer(library, device, [(address, total)], specs, name, None)
    told = name or handle
    print(told, flush=True)
    print(
        f"gapless keep: {len(specs)} tensors, {size_text(total)} of {', '.join(files)} on cuda:{device} until SIGTERM; "
        f'in another process: gapless.attach("{told}", model)',
        file=sys.stderr,
        flush=True,
    )
    until.wait()
    _share.unshare(handle)
    _memory.free(address)
    print("gapless keep: ended; processes that have attached keep the memory", file=sys.stderr, flush=True)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"error: {message}: see `gapless keep --help`", file=sys.stderr)
        raise SystemExit(2)


def main(arguments: Optional[list[str]] = None) -> int:
    parser = _Parser(prog="gapless keep", description="Holds weights on a GPU for other processes, which attach them without a copy.")
    parser.add_argument("file", nargs="+", help="a .safetensors file, or a folder with some")
    parser.add_argument("--name", help="what others attach by; without it a handle is printed")
    parser.add_argument("--device", type=int, default=0, help="the GPU's number (0)")
    asked = parser.parse_args(arguments)
    until = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: until.set())
    try:
        keep(asked.file, asked.name, asked.device, until)
    except (GaplessError, MemoryError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
