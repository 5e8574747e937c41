"""from_pretrained: transformers, diffusers and other users of safetensors read their files with Gapless.

Only the reading of .safetensors files is replaced: `safetensors.safe_open`, in every module that has it, and
`safetensors.torch.load`. Names, devices, conversions and tied weights stay what the library makes of them.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional, Union

from .. import _forks
from .._errors import GaplessError, OptionError
from . import _place
from ._load import DTYPES, Filler, torch_dtype
from ._native import Catalogue

if TYPE_CHECKING:
    import torch

# Tensors that follow in the file are read with the one that is asked for, up to so many bytes in all.
WINDOW = 256 << 20
# The metadata key of packed files.
PACKED = b'"gapless.header"'


class Unknown(Exception):
    """Something that safetensors itself has to read."""


class Opened:
    """The object that `safe_open` returns, over a Gapless catalogue. Threads may use it together."""

    def __init__(self, filename: "str | os.PathLike[str]", device: Any, threads: Optional[int]) -> None:
        import torch

        self._catalogue = Catalogue(filename)
        self._device = torch.device(f"cuda:{device}" if isinstance(device, int) else device)
        unknown = next((tensor["dtype"] for tensor in self._catalogue.tensors if tensor["dtype"] not in DTYPES), None)
        if unknown is not None or self._device.type not in ("cpu", "cuda"):
            is_packed = self._catalogue.files[0]["packed"]
            self._catalogue.close()
            # safetensors would take a packed tensor for bytes.
            if is_packed and unknown is not None:
                torch_dtype(unknown)
            if is_packed:
                raise OptionError(f"invalid device {str(device)!r} for the packed file {os.fspath(filename)}: use 'cuda', 'cuda:N' or 'cpu'")
            raise Unknown
        self._threads = threads
        self._numbers = {tensor["name"]: at for at, tensor in enumerate(self._catalogue.tensors)}
        # Tensors that were read with another one, until they are asked for.
        self._ahead: dict[int, Any] = {}
        self._given: set[int] = set()
        self._is_sliced = False
        self._turn = _forks.lock()

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        with self._turn:
            self._ahead.clear()
            self._catalogue.close()

    def keys(self) -> "list[str]":
        return sorted(self._numbers)

    def offset_keys(self) -> "list[str]":
        return list(self._numbers)

    def metadata(self) -> "Optional[dict[str, str]]":
        return dict(self._catalogue.files[0]["metadata"]) or None

    def get_tensor(self, name: str) -> "torch.Tensor":
        at = self._number(name)
        with self._turn:
            if at not in self._ahead:
                self._ahead.update(self._read(self._window(at)))
            self._given.add(at)
            found: torch.Tensor = self._ahead.pop(at)
            return found

    def get_tensors(self) -> "dict[str, torch.Tensor]":
        with self._turn:
            found = self._read(range(len(self._numbers)))
        return {name: found[at] for name, at in self._numbers.items()}

    def get_slice(self, name: str) -> "Slice":
        return Slice(self, name, self._catalogue.tensors[self._number(name)])

    def rows(self, name: str, first: int, last: int) -> "torch.Tensor":
        """Rows of a tensor, and nothing else of the file."""
        with self._turn:
            # A program that reads rows loads a part of the model, and may not want the tensors that follow.
            self._is_sliced = True
            return self._read([self._number(name)], (first, last))[self._number(name)]

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            from safetensors import SafetensorError

            raise SafetensorError(f"File does not contain tensor {name}")
        return self._numbers[name]

    def _window(self, at: int) -> "list[int]":
        """The tensor and those after it in the file that were not asked for yet, as many as fit in the window."""
        chosen = [at]
        left = 0 if self._is_sliced else WINDOW - self._catalogue.tensors[at]["bytes"]
        for other in range(at + 1, len(self._numbers)):
            left -= self._catalogue.tensors[other]["bytes"]
            if left < 0 or other in self._given or other in self._ahead:
                break
            chosen.append(other)
        return chosen

    def _read(self, numbers: Any, rows: "Optional[tuple[int, int]]" = None) -> "dict[int, torch.Tensor]":
        import torch

        if self._catalogue.is_closed:
            from safetensors import SafetensorError

            raise SafetensorError("File is closed")
        filler = Filler(self._catalogue, self._device, self._threads, False)
        found: dict[int, torch.Tensor] = {}
        for at in numbers:
            tensor = self._catalogue.tensors[at]
            stored, shape, begin = torch_dtype(tensor["dtype"]), list(tensor["shape"]), 0
            if rows is not None:
                begin = rows[0] * (tensor["bytes"] // shape[0] if shape[0] else 0)
                shape[0] = rows[1] - rows[0]
            found[at] = _place.empty(shape, stored, self._device, tensor, begin)
            filler.add(at, begin, found[at], stored)
        filler.run()
        return found


class Slice:
    """The object that `get_slice` returns: indexing reads. Of a range of rows only those rows are read."""

    def __init__(self, opened: Opened, name: str, tensor: "dict[str, Any]") -> None:
        self._opened, self._name, self._tensor = opened, name, tensor

    def get_shape(self) -> "list[int]":
        return list(self._tensor["file_shape"])

    def get_dtype(self) -> str:
        return str(self._tensor["dtype"])

    def __getitem__(self, index: Any) -> "torch.Tensor":
        parts = index if isinstance(index, tuple) else (index,)
        shape = self._tensor["shape"]
        if shape and parts and isinstance(parts[0], slice) and parts[0].step in (None, 1):
            first, last, _ = parts[0].indices(shape[0])
            last = max(first, last)
            if last - first < shape[0]:
                return _part(self._opened.rows(self._name, first, last), (slice(None), *parts[1:]))
        if shape and parts and isinstance(parts[0], int) and not isinstance(parts[0], bool):
            row = parts[0] + shape[0] if parts[0] < 0 else parts[0]
            if 0 <= row < shape[0]:
                return _part(self._opened.rows(self._name, row, row + 1), (0, *parts[1:]))
        return _part(self._opened.get_tensor(self._name), parts)


def _part(tensor: "torch.Tensor", index: "tuple[Any, ...]") -> "torch.Tensor":
    # A copy, as safetensors makes one: a view would keep the whole tensor alive.
    is_whole = len(index) <= tensor.dim() and all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in index)
    return tensor if is_whole else tensor[index].clone()


@contextlib.contextmanager
def from_pretrained(device: "Optional[Union[str, torch.device]]" = None, *, threads: Optional[int] = None) -> Iterator[None]:
    """Within the block, libraries that read files with `safetensors` read them with Gapless, packed or not.

        with gapless.weights.from_pretrained(device="cuda"):
            model = AutoModel.from_pretrained("packed/", device_map="cuda")

    transformers and diffusers read to the CPU and then move each tensor. `device` reads such tensors straight to a GPU:
    name the one device that the model goes to. The replacement is the process's: other threads see it too.
    """
    try:
        import safetensors
        import safetensors.torch as of_torch
    except ImportError:
        raise GaplessError("safetensors is not installed: from_pretrained replaces how it reads files; run `pip install safetensors`") from None
    import torch

    if device is not None and torch.device(device).type not in ("cpu", "cuda"):
        raise OptionError(f"invalid device {str(device)!r}: use 'cuda', 'cuda:N', 'cpu' or None")
    if threads is not None and threads < 1:
        raise OptionError(f"invalid threads={threads}: use a number of at least 1")
    # In nested blocks the innermost one counts, and puts back the functions that it found.
    their_open, their_load = safetensors.safe_open, of_torch.load
    original = getattr(their_open, "_gapless_original", their_open)
    original_load = getattr(their_load, "_gapless_original", their_load)
    # The functions below have a parameter of that name, because safetensors' own do.
    moved_to = device

    def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **others: Any) -> Any:
        if framework in ("pt", "torch", "pytorch"):
            with contextlib.suppress(Unknown):
                return Opened(filename, moved_to if moved_to is not None and str(device) == "cpu" else device, threads)
        return original(filename, framework, device, **others)

    def load(data: bytes) -> Any:
        if PACKED not in data[8 : 8 + int.from_bytes(data[:8], "little")]:
            return original_load(data)
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(data)
            file.flush()
            with Opened(file.name, moved_to or "cpu", threads) as opened:
                return opened.get_tensors()

    safe_open._gapless_original = original  # type: ignore[attr-defined]
    load._gapless_original = original_load  # type: ignore[attr-defined]
    try:
        _replace(their_open, safe_open)
        _replace(their_load, load)
        yield
    finally:
        _replace(safe_open, their_open)
        _replace(load, their_load)


def _replace(old: Any, new: Any) -> None:
    """Puts `new` where modules have `old`: `from safetensors import safe_open` copied it."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if not isinstance(names, dict):
            continue
        for name in [name for name, value in list(names.items()) if value is old]:
            names[name] = new
