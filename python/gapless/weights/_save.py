"""save: a model's tensors as safetensors files, streamed from where they are, or in the background."""

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from .._errors import OptionError
from . import _native, _saves
from ._background import Saving, copied, settle
from ._distributed import shard_of
from ._load import DTYPES, _identity, is_dtensor, memory_of, threads_of

if TYPE_CHECKING:
    import torch

Path = Union[str, "os.PathLike[str]"]
Model = Union["torch.nn.Module", "Mapping[str, torch.Tensor]"]
NAMES = {torch_name: name for name, torch_name in DTYPES.items()}
INDEX = "model.safetensors.index.json"
# The names of files that a save to a folder writes, as transformers does.
SHARD = re.compile(r"model(-\d{5,}-of-\d{5,})?\.safetensors")


@dataclass
class File:
    """One file that is to be written."""

    path: str
    tensors: "dict[str, Any]"
    metadata: "dict[str, str]"


@overload
def save(
    model: Model,
    path: Path,
    pack: bool = True,
    *,
    shard_size: int = ...,
    metadata: "Optional[Mapping[str, str]]" = None,
    rank: Optional[int] = None,
    world: Optional[int] = None,
    identity: Optional[str] = None,
    threads: Optional[int] = None,
    asynchronous: Literal[False] = False,
) -> "list[str]": ...


@overload
def save(
    model: Model,
    path: Path,
    pack: bool = True,
    *,
    shard_size: int = ...,
    metadata: "Optional[Mapping[str, str]]" = None,
    rank: Optional[int] = None,
    world: Optional[int] = None,
    identity: Optional[str] = None,
    threads: Optional[int] = None,
    asynchronous: Literal[True],
) -> Saving: ...


def save(
    model: Model,
    path: Path,
    pack: bool = True,
    *,
    shard_size: int = 5_000_000_000,
    metadata: "Optional[Mapping[str, str]]" = None,
    rank: Optional[int] = None,
    world: Optional[int] = None,
    identity: Optional[str] = None,
    threads: Optional[int] = None,
    asynchronous: bool = False,
) -> "Union[list[str], Saving]":
    """Writes a model's state_dict, or a mapping of tensors; returns the files.

    A path that ends in .safetensors is one file. Any other is a folder: one file, or shards of at most `shard_size`
    bytes with an index. Each file appears whole or not at all, the index last; then shards of an earlier save that had
    another number of them are removed. Tensors of a GPU are read a megabyte at a time. Names that are one tensor are
    stored once; the metadata says which, as safetensors does.

    Shards of two saves never load together, such as those that a killed save leaves: the metadata says whose they are.

    With `rank` and `world` each rank calls this with the same folder and writes one file of its own, in the layout of
    torch.distributed.checkpoint's HuggingFaceStorageWriter: its part of each DTensor, its rows of other tensors. If
    torch.distributed runs, the ranks agree on whose save it is; if not, give all of them the same `identity`, such as
    "step-1000".

    `asynchronous=True` copies the tensors to host memory (those of a GPU to pinned memory, on a stream of its own) and
    returns a Saving: the files are written in the background while training goes on. A failure is raised by its
    wait(), or else by the next save.
    """
    if shard_size < 1:
        raise OptionError(f"invalid shard_size={shard_size}: use a number of bytes, such as 5_000_000_000")
    for key in metadata or {}:
        if key == _saves.SAVE or key.startswith(_saves.RESERVED):
            raise OptionError(f"invalid metadata key {key!r}: Gapless writes that key itself; use another name")
    if identity is not None and rank is None:
        raise OptionError(f"invalid identity={identity!r}: it is for saves of several ranks; without rank= and world= every save has one")
    state = model if isinstance(model, Mapping) else model.state_dict()
    place = os.fspath(path)
    count = threads_of(threads, 8)
    settle()
    if rank is None and world is None:
        files = _files(state, place, shard_size, metadata)
    elif rank is None or world is None or world < 1 or not 0 <= rank < world:
        raise OptionError(f"invalid rank={rank}, world={world}: give both; ranks are 0 to world - 1")
    elif place.endswith(".safetensors"):
        raise OptionError(f"invalid path {place!r}: ranks write to a folder; name one")
    else:
        for name, tensor in state.items():
            _check(name, tensor.to_local() if is_dtensor(tensor) else tensor)
        tensors, told, file_name = shard_of(state, rank, world)
        of_save = _saves.of_ranks(identity, rank, world)
        if of_save is not None:
            told[_saves.SAVE] = of_save
        files = [File(os.path.join(place, file_name), tensors, {"format": "pt", **(metadata or {}), **told})]
    for one in files:
        _one_card(one)
    if not asynchronous:
        _write(files, place, pack, count)
        return [file.path for file in files]
    kept, is_copied = copied([file.tensors for file in files])
    for file, tensors in zip(files, kept):
        file.tensors = tensors
    return Saving([file.path for file in files], is_copied, lambda: _write(files, place, pack, count))


def _files(state: "Mapping[str, Any]", place: str, shard_size: int, metadata: "Optional[Mapping[str, str]]") -> "list[File]":
    kept: dict[str, Any] = {}
    tied: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, tensor in state.items():
        _check(name, tensor)
        first = seen.setdefault(_identity(tensor), name)
        if first == name:
            kept[name] = tensor.detach()
        else:
            tied[name] = first
    told = {"format": "pt", **(metadata or {}), **tied}
    if place.endswith(".safetensors"):
        return [File(place, kept, told)]
    shards = _shards(kept, shard_size)
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        told[_saves.SAVE] = _saves.of_files(len(shards))
        names = [f"model-{n + 1:05}-of-{len(shards):05}.safetensors" for n in range(len(shards))]
    return [
        File(os.path.join(place, name), shard, {key: value for key, value in told.items() if key not in tied or value in shard})
        for name, shard in zip(names, shards)
    ]


def _write(files: "list[File]", place: str, pack: bool, threads: int) -> None:
    """Writes files, and the index of a folder that has several."""
    if not place.endswith(".safetensors"):
        os.makedirs(place, exist_ok=True)
    for file in files:
        _file(file, pack, threads)
    if len(files) > 1:
        weight_map = {name: os.path.basename(file.path) for file in files for name in file.tensors}
        total = sum(tensor.numel() * tensor.dtype.itemsize for file in files for tensor in file.tensors.values())
        about = {"total_size": total, _saves.SAVE: files[0].metadata[_saves.SAVE]}
        index = os.path.join(place, INDEX)
        part = os.path.join(place, f".{INDEX}.{os.getpid()}.part")
        with open(part, "w", encoding="utf-8") as out:
            json.dump({"metadata": about, "weight_map": weight_map}, out, indent=2, sort_keys=True)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, index)
    if not place.endswith(".safetensors") and all(SHARD.fullmatch(os.path.basename(file.path)) for file in files):
        _remove_older(place, {os.path.basename(file.path) for file in files}, is_indexed=len(files) > 1)


def _remove_older(folder: str, names: "set[str]", is_indexed: bool) -> None:
    """Removes the files of an earlier save to this folder that had another number of shards, the index first: a reader
    would follow it to the old tensors, or find two models."""
    if not is_indexed:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, INDEX))
    for name in sorted(os.listdir(folder)):
        if SHARD.fullmatch(name) and name not in names:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(folder, name))


def _check(name: str, tensor: Any) -> None:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise OptionError(f"{name!r} is {type(tensor).__name__}, not a tensor: save tensors alone")
    if not isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin) and tensor.is_meta:
        raise OptionError(f"{name!r} is on the meta device and has no values: load the model first")
    if tensor.layout is not torch.strided:
        raise OptionError(f"{name!r} has the layout {tensor.layout}: safetensors stores dense tensors alone")
    memory_of(name, tensor)
    if name == "__metadata__":
        raise OptionError("'__metadata__' is not a name for a tensor: safetensors has its metadata there; pass metadata= for that")
    if str(tensor.dtype).partition(".")[2] not in NAMES or (str(tensor.dtype).endswith("_x2") and not tensor.dim()):
        raise OptionError(f"{name!r} has the type {tensor.dtype}, which safetensors does not have")
    if tensor.device.type not in ("cpu", "cuda"):
        raise OptionError(f"{name!r} is on {tensor.device}: move it to the CPU first")


def _one_card(file: File) -> None:
    devices = {tensor.device for tensor in file.tensors.values() if tensor.device.type == "cuda"}
    if len(devices) > 1:
        raise OptionError(f"the tensors of one file are on {len(devices)} GPUs: save each GPU's tensors to a file of their own")


def _shards(tensors: "dict[str, Any]", size: int) -> "list[dict[str, Any]]":
    """Tensors in their order, in shards of at most `size` bytes; a larger tensor has a shard of its own."""
    shards: list[dict[str, Any]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        length = tensor.numel() * tensor.dtype.itemsize
        if shards[-1] and filled + length > size:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += length
    return shards


def _values(tensor: Any) -> Any:
    """The tensor with its values in memory, one after another: views that conjugate or negate have other ones there."""
    import torch

    if tensor.is_complex() or tensor.is_floating_point():
        tensor = tensor.resolve_conj().resolve_neg()
    if not tensor.is_contiguous() and tensor.dtype.itemsize == 1:
        # torch copies pairs of 4-bit values only as bytes.
        tensor = tensor.view(torch.uint8)
    return tensor.contiguous()


def _file(file: File, pack: bool, threads: int) -> None:
    import torch

    tensors = file.tensors
    # Wide types first, as safetensors does: then every tensor is aligned to its type.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": file.metadata}
    held, kept, end = [], [], 0
    for name in order:
        # A view that is not contiguous is copied where it is; the copy lives until the file is written.
        tensor = _values(tensors[name])
        kept.append(tensor)
        length = tensor.numel() * tensor.dtype.itemsize
        dtype, shape = NAMES[str(tensors[name].dtype).partition(".")[2]], list(tensor.shape)
        if dtype == "F4":
            # torch's shape counts pairs of values, the format's shape single values.
            shape[-1] *= 2
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + length]}
        held.append((tensor.data_ptr(), length, int(tensor.device.type == "cuda")))
        end += length
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    settings = _native.Settings(device=-1, threads=threads)
    for device in {tensor.device for tensor in kept if tensor.device.type == "cuda"}:
        with torch.cuda.device(device):
            settings.device = torch.cuda.current_device()
            settings.stream = torch.cuda.current_stream().cuda_stream
    _native.save(file.path, text, held, settings, pack)
