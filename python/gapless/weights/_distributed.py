"""Checkpoints of several ranks, in the layout of torch.distributed.checkpoint's HuggingFaceStorageWriter.

Each rank writes one file. A tensor of it is a part of the whole one: the metadata has the part's offsets.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._errors import FormatError
from ._native import Catalogue

if TYPE_CHECKING:
    import torch

SHARDING, OFFSETS, VERSION = "DCP_SHARDING_INFO", "saved_offsets", "DCP_VERSION"
# How many ranks wrote a checkpoint: our own key, because offsets do not show that the last rank's file is missing.
WORLD = "gapless_world"


def rows_of(shape: "list[int]", rank: int, world: int) -> tuple[int, int]:
    """The rows of a rank: as torch.chunk and DTensor's Shard(0) cut, so the last ranks may have fewer or none."""
    each = -(-shape[0] // world)
    return min(rank * each, shape[0]), min((rank + 1) * each, shape[0])


def shard_of(state: "Mapping[str, torch.Tensor]", rank: int, world: int) -> "tuple[dict[str, Any], dict[str, str], str]":
    """The tensors, the metadata and the name of the file that a rank writes."""
    tensors: dict[str, Any] = {}
    info: dict[str, dict[str, list[int]]] = {}
    for name, tensor in state.items():
        local, offsets = _local(tensor.detach(), rank, world)
        if local is not None:
            tensors[name] = local
            info[name] = {OFFSETS: offsets}
    metadata = {SHARDING: json.dumps(info), VERSION: "1.0", WORLD: str(world)}
    return tensors, metadata, f"shard-{rank + 1:05}-model-00001-of-00001.safetensors"


def _local(tensor: Any, rank: int, world: int) -> "tuple[Any, list[int]]":
    """A rank's part of a tensor, None if another rank has it, and the offsets at which it begins."""
    if hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        mesh, placements = tensor.device_mesh, tensor.placements
        coordinate = mesh.get_coordinate()
        # Of equal copies the first one is written.
        if coordinate is None or any(at != 0 and isinstance(of, Replicate) for at, of in zip(coordinate, placements)):
            return None, []
        shape, offsets = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
        local = tensor.to_local()
        return (local, list(offsets)) if local.numel() or tuple(shape) == tuple(tensor.shape) else (None, [])
    if tensor.dim() == 0:
        return (tensor, []) if rank == 0 else (None, [])
    first, last = rows_of(list(tensor.shape), rank, world)
    if first == last and not (rank == 0 and tensor.shape[0] == 0):
        return None, []
    return tensor[first:last], [first] + [0] * (tensor.dim() - 1)


@dataclass
class Part:
    """Some of a tensor: its number in the catalogue, where it begins, and its shape."""

    number: int
    offsets: "list[int]"
    shape: "list[int]"


@dataclass
class Whole:
    """A tensor of a model, and the parts that it is stored in. A plain file has one part."""

    name: str
    dtype: str
    shape: "list[int]"
    parts: "list[Part]"


def wholes(catalogue: Catalogue) -> "dict[str, Whole]":
    """The tensors of a catalogue by name; parts of several ranks are joined."""
    info = [dict(file["metadata"]).get(SHARDING) for file in catalogue.files]
    if not any(info):
        return {
            tensor["name"]: Whole(tensor["name"], tensor["dtype"], tensor["shape"], [Part(at, [0] * len(tensor["shape"]), tensor["shape"])])
            for at, tensor in enumerate(catalogue.tensors)
        }
    for file in catalogue.files:
        world = dict(file["metadata"]).get(WORLD)
        if world is not None and world.isdigit() and world != str(len(catalogue.files)):
            path, count = file["path"], len(catalogue.files)
            help_text = "copy all of them" if count < int(world) else "remove those of other checkpoints"
            raise FormatError(f"{path}: {world} ranks wrote this checkpoint, and the folder has {count} files: {help_text}", path)
    parsed = [_parse(text, file["path"]) for text, file in zip(info, catalogue.files)]
    joined: dict[str, Whole] = {}
    for at, tensor in enumerate(catalogue.tensors):
        name, shape = tensor["name"], tensor["shape"]
        offsets = parsed[tensor["file"]].get(name, {}).get(OFFSETS, [0] * len(shape))
        path = catalogue.files[tensor["file"]]["path"]
        if len(offsets) != len(shape) or not all(isinstance(offset, int) and offset >= 0 for offset in offsets):
            raise FormatError(f"{path}: the offsets of tensor {name!r} are {offsets}, and its shape is {shape}: save the checkpoint again", path)
        ends = [offset + length for offset, length in zip(offsets, shape)]
        whole = joined.setdefault(name, Whole(name, tensor["dtype"], ends, []))
        if whole.dtype != tensor["dtype"] or len(whole.shape) != len(shape):
            raise FormatError(f"{path}: tensor {name!r} has another type or shape than in the other ranks' files: save the checkpoint again", path)
        whole.shape = [max(pair) for pair in zip(whole.shape, ends)]
        whole.parts.append(Part(at, offsets, shape))
    for whole in joined.values():
        _check_parts(whole)
    return joined


def _parse(text: Any, path: str) -> "dict[str, Any]":
    try:
        parsed = json.loads(text or "{}")
        if isinstance(parsed, dict) and all(isinstance(value, dict) for value in parsed.values()):
            return parsed
    except ValueError:
        pass
    raise FormatError(f"{path}: {SHARDING} in its metadata is not what torch.distributed.checkpoint writes: save the checkpoint again", path)


def _check_parts(whole: Whole) -> None:
    """An error unless the parts fill the tensor, each place once."""

    def values(shape: "list[int]") -> int:
        count = 1
        for length in shape:
            count *= length
        return count

    filled = sum(values(part.shape) for part in whole.parts)
    parts = sorted((part for part in whole.parts if values(part.shape)), key=lambda part: part.offsets)
    overlap = False
    for at, part in enumerate(parts):
        for other in parts[at + 1 :]:
            if part.offsets and other.offsets[0] >= part.offsets[0] + part.shape[0]:
                break
            overlap |= all(a < b + m and b < a + n for a, n, b, m in zip(part.offsets, part.shape, other.offsets, other.shape))
    if overlap or filled != values(whole.shape):
        raise FormatError(f"the files of the ranks do not add up to tensor {whole.name!r}: a rank's file is missing, or there are files of two checkpoints")
