"""save: a model's tensors as safetensors files, streamed from where they are."""

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, Union

from .._errors import OptionError
from . import _native
from ._load import DTYPES, _identity, _threads

if TYPE_CHECKING:
    import torch

Path = Union[str, "os.PathLike[str]"]
NAMES = {torch_name: name for name, torch_name in DTYPES.items()}
INDEX = "model.safetensors.index.json"


def save(
    model: "Union[torch.nn.Module, Mapping[str, torch.Tensor]]",
    path: Path,
    pack: bool = True,
    *,
    shard_size: int = 5_000_000_000,
    metadata: "Optional[Mapping[str, str]]" = None,
    threads: Optional[int] = None,
) -> "list[str]":
    """Writes a model's state_dict, or a mapping of tensors; returns the files.

    A path that ends in .safetensors is one file. Any other is a folder: one file, or shards of at most `shard_size`
    bytes with an index. Each file appears whole or not at all, the index last. Tensors of a GPU are read a megabyte at
    a time. Names that are one tensor are stored once; the metadata says which, as safetensors does.
    """
    import torch

    state = model if isinstance(model, Mapping) else model.state_dict()
    if shard_size < 1:
        raise OptionError(f"invalid shard_size={shard_size}: use a number of bytes, such as 5_000_000_000")
    kept: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise OptionError(f"{name!r} is {type(tensor).__name__}, not a tensor: save tensors alone")
        _check(name, tensor)
        first = seen.setdefault(_identity(tensor), name)
        if first == name:
            kept[name] = tensor.detach()
        else:
            tied[name] = first
    told = {"format": "pt", **(metadata or {}), **tied}
    place = os.fspath(path)
    if place.endswith(".safetensors"):
        _file(place, kept, told, pack, threads)
        return [place]
    os.makedirs(place, exist_ok=True)
    shards = _shards(kept, shard_size)
    if len(shards) == 1:
        files = [os.path.join(place, "model.safetensors")]
    else:
        files = [os.path.join(place, f"model-{n + 1:05}-of-{len(shards):05}.safetensors") for n in range(len(shards))]
    for file, shard in zip(files, shards):
        _file(file, shard, {key: value for key, value in told.items() if key not in tied or value in shard}, pack, threads)
    if len(shards) > 1:
        weight_map = {name: os.path.basename(file) for file, shard in zip(files, shards) for name in shard}
        total = sum(tensor.numel() * tensor.dtype.itemsize for tensor in kept.values())
        index = os.path.join(place, INDEX)
        part = f"{index}.{os.getpid()}.part"
        with open(part, "w", encoding="utf-8") as out:
            json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, out, indent=2, sort_keys=True)
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, index)
    return files


def _check(name: str, tensor: Any) -> None:
    if tensor.is_meta:
        raise OptionError(f"{name!r} is on the meta device and has no values: load the model first")
    if tensor.layout is not _strided():
        raise OptionError(f"{name!r} has the layout {tensor.layout}: safetensors stores dense tensors alone")
    if str(tensor.dtype).partition(".")[2] not in NAMES:
        raise OptionError(f"{name!r} has the type {tensor.dtype}, which safetensors does not have")
    if tensor.device.type not in ("cpu", "cuda"):
        raise OptionError(f"{name!r} is on {tensor.device}: move it to the CPU first")


def _strided() -> Any:
    import torch

    return torch.strided


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


def _file(path: str, tensors: "dict[str, Any]", metadata: "dict[str, str]", pack: bool, threads: Optional[int]) -> None:
    import torch

    # Wide types first, as safetensors does: then every tensor is aligned to its type.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": metadata}
    held, kept, end = [], [], 0
    devices = {tensors[name].device for name in order if tensors[name].device.type == "cuda"}
    if len(devices) > 1:
        raise OptionError(f"the tensors of one file are on {len(devices)} GPUs: save each GPU's tensors to a file of their own")
    for name in order:
        # A view that is not contiguous is copied where it is; the copy lives until the file is written.
        tensor = tensors[name].contiguous()
        kept.append(tensor)
        length = tensor.numel() * tensor.dtype.itemsize
        dtype = NAMES[str(tensor.dtype).partition(".")[2]]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [end, end + length]}
        held.append((tensor.data_ptr(), length, int(tensor.device.type == "cuda")))
        end += length
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    settings = _native.Settings(device=-1, threads=_threads(threads, is_card=False))
    for device in devices:
        with torch.cuda.device(device):
            settings.device = torch.cuda.current_device()
            settings.stream = torch.cuda.current_stream().cuda_stream
    _native.save(path, text, held, settings, pack)
