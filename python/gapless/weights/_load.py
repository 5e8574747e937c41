"""load and load_into: tensors at their final place, filled by the native library."""

import fnmatch
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional, Union

from .._errors import OptionError
from . import _place, _ways
from ._distributed import SHARDING, VERSION, WORLD, Whole, rows_of, wholes
from ._errors import FormatError, NamesError
from ._native import Bar, Catalogue, Progress, Settings

if TYPE_CHECKING:
    import torch

Path = Union[str, "os.PathLike[str]"]

# Names of safetensors, and torch's.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    # Two values in a byte. A catalogue's shapes count the bytes of a row, as torch does.
    "F4": "float4_e2m1fn_x2",
}
# Bytes that are converted at a time: each time costs some milliseconds.
CONVERTED = 64 << 20
CONVERTED_ON_CARD = 256 << 20


def _room(length: int) -> int:
    """The bytes of the buffer that so many bytes take: values of every type begin at a multiple of their size."""
    return -(-length // 256) * 256


def torch_dtype(name: str) -> "torch.dtype":
    import torch

    found = getattr(torch, DTYPES.get(name, ""), None)
    if found is None:
        raise FormatError(f"torch {torch.__version__} has no type for {name}: use a newer torch, or leave those tensors out with names=")
    dtype: torch.dtype = found
    return dtype


def memory_of(name: str, tensor: Any) -> Any:
    """The tensor, if it has its values in its own memory; otherwise an error that says what it is."""
    import torch

    kind = type(tensor).__name__
    if is_dtensor(tensor):
        raise OptionError(f"{name!r} is a DTensor: pass rank= and world= to save each rank's part, or save its full_tensor()")
    if getattr(tensor, "is_nested", False):
        raise OptionError(f"{name!r} is a nested tensor: save its parts (unbind()) under names of their own")
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise OptionError(f"{name!r} has no shape yet: call the model once, so that its lazy modules get their parameters")
    try:
        address = 0 if kind == "FakeTensor" else tensor.data_ptr()
    except RuntimeError:
        address = 0
    if address == 0 and tensor.numel():
        raise OptionError(f"{name!r} is a {kind} without memory of its own: use the tensors that it is made of, outside of FakeTensorMode and torch.func")
    return tensor


def is_dtensor(tensor: Any) -> bool:
    return hasattr(tensor, "to_local") and hasattr(tensor, "device_mesh")


def threads_of(given: Optional[int], most: int) -> int:
    """Threads that a caller wants, or as many as there are cores, at most so many."""
    if given is not None:
        if given < 1:
            raise OptionError(f"invalid threads={given}: use a number of at least 1")
        return given
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, most))


def aliases(catalogue: Catalogue) -> "dict[str, str]":
    """Names that a file's metadata gives to tensors that it stores under another name, as safetensors writes them."""
    names = {tensor["name"] for tensor in catalogue.tensors}
    found: dict[str, str] = {}
    for file in catalogue.files:
        found.update({key: value for key, value in file["metadata"] if value in names and key not in names and key not in (SHARDING, VERSION, WORLD)})
    return found


def choose(known: Iterable[str], names: Any) -> "list[str]":
    """The names that are wanted: exact ones, or patterns with *. None and ... mean all."""
    known = list(known)
    if names is None or names is ...:
        return known
    if isinstance(names, str):
        names = [names]
    there = set(known)
    chosen: dict[str, None] = {}
    missing: list[str] = []
    for name in names:
        if name in there:
            chosen[name] = None
        elif "*" in name and (matched := fnmatch.filter(known, name)):
            chosen.update(dict.fromkeys(matched))
        else:
            missing.append(name)
    if missing:
        shown = ", ".join(repr(name) for name in missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise NamesError(f"the files have no tensor {shown}: they have {len(known)}, such as {known[0] if known else 'none'!r}", missing=tuple(missing))
    return list(chosen)


class Filler:
    """Fills tensors from a catalogue. Conversions go through a buffer, many tensors at a time."""

    def __init__(
        self,
        catalogue: Catalogue,
        device: "torch.device",
        threads: Optional[int],
        progress: Optional[bool],
        kernel: bool = True,
        *,
        limit_rate: "Optional[Union[int, float, str]]" = None,
        timeout: Optional[float] = None,
        shared: bool = False,
    ) -> None:
        import torch

        self._catalogue, self._device = catalogue, device
        is_card = device.type == "cuda"
        if is_card:
            try:
                torch.cuda.init()
            except (RuntimeError, AssertionError) as error:
                raise OptionError(f"invalid device {str(device)!r}: there is no GPU that torch can use ({error}): pass device='cpu'") from None
        # 0 leaves it to the native library, which sees whether the files are cached.
        count = 0 if threads is None else threads_of(threads, threads)
        self._settings = Settings(device=-1, threads=count)
        _ways.apply(self._settings, limit_rate, timeout, shared)
        self._staging = None
        if is_card:
            with torch.cuda.device(device):
                self._settings.device = torch.cuda.current_device()
                self._settings.stream = torch.cuda.current_stream().cuda_stream
                if kernel and any(tensor["packed"] for tensor in catalogue.tensors):
                    self._settings.staged = count or catalogue.threads()
                    self._staging = torch.empty(self._settings.staged * catalogue.staging(), dtype=torch.uint8, device=device)
                    self._settings.staging = self._staging.data_ptr()
        elif device.type != "cpu":
            raise OptionError(f"invalid device {str(device)!r}: use 'cuda', 'cuda:N' or 'cpu'")
        self._told = Bar() if progress or (progress is None and sys.stderr.isatty()) else None
        self._pieces: list[tuple[int, int, int, int]] = []
        self._convert: list[tuple[int, int, Any, Any]] = []
        # Parts that are not whole rows: they are loaded, then copied to their place.
        self._copies: list[tuple[Any, Any]] = []
        self.last = Progress()

    def add(self, at: int, begin: int, target: Any, stored: "torch.dtype") -> None:
        """The bytes from `begin` of tensor number `at` into a contiguous tensor, converted if its type is another."""
        length = target.numel() * stored.itemsize
        memory_of("the target", target)
        if target.dtype == stored:
            self._pieces.append((at, begin, begin + length, target.data_ptr()))
        else:
            self._convert.append((at, begin, target, stored))

    def add_rows(self, whole: Whole, first: int, target: Any, stored: "torch.dtype") -> None:
        """The rows of a tensor from `first` into a contiguous tensor, out of all parts that it is stored in."""
        import torch

        for part in whole.parts:
            if not part.shape:
                self.add(part.number, 0, target, stored)
                continue
            begin = max(first, part.offsets[0])
            end = min(first + target.shape[0], part.offsets[0] + part.shape[0])
            if begin >= end:
                continue
            of_row = stored.itemsize
            for length in part.shape[1:]:
                of_row *= length
            rows = target[begin - first : end - first]
            if part.shape[1:] != whole.shape[1:]:
                place = (slice(begin - first, end - first), *(slice(offset, offset + length) for offset, length in zip(part.offsets[1:], part.shape[1:])))
                rows = torch.empty([end - begin, *part.shape[1:]], dtype=target.dtype, device=target.device)
                self._copies.append((target[place], rows))
            self.add(part.number, (begin - part.offsets[0]) * of_row, rows, stored)

    def run(self) -> Progress:
        import torch

        if self._device.type == "cuda":
            with torch.cuda.device(self._device):
                return self._run()
        return self._run()

    def _run(self) -> Progress:
        import torch

        self.last = self._catalogue.load(self._pieces, self._settings, self._told)
        if self._convert:
            self._run_conversions()
        with torch.no_grad():
            for to, part in self._copies:
                to.copy_(part)
        return self.last

    def _run_conversions(self) -> None:
        """Loads as many parts as the buffer takes, converts them to their places, and so on."""
        import torch

        wanted = sum(_room(target.numel() * stored.itemsize) for _, _, target, stored in self._convert)
        buffer = self._buffer(wanted)
        pieces: list[tuple[int, int, int, int]] = []
        parts: list[tuple[Any, Any]] = []
        used = 0

        def convert() -> None:
            nonlocal used
            self.last = self._catalogue.load(pieces, self._settings)
            with torch.no_grad():
                for to, values in parts:
                    to.copy_(values)
            pieces.clear()
            parts.clear()
            used = 0

        for at, begin, target, stored in self._convert:
            flat, width, first = target.view(-1), stored.itemsize, 0
            while first < flat.numel():
                part = flat[first : first + (buffer.numel() - used) // width]
                if not part.numel():
                    convert()
                    continue
                length, from_byte = part.numel() * width, begin + first * width
                values = buffer[used : used + length].view(stored)
                pieces.append((at, from_byte, from_byte + length, values.data_ptr()))
                parts.append((part, values))
                first += part.numel()
                used = min(used + _room(length), buffer.numel())
        if pieces:
            convert()

    def _buffer(self, wanted: int) -> "torch.Tensor":
        """Memory for the bytes that are converted: less if the GPU is full."""
        import torch

        if self._device.type == "cuda" and wanted > CONVERTED:
            try:
                return torch.empty(min(wanted, CONVERTED_ON_CARD), dtype=torch.uint8, device=self._device)
            except torch.cuda.OutOfMemoryError:
                pass
        return torch.empty(min(wanted, CONVERTED), dtype=torch.uint8, device=self._device)


def load(
    path: Path,
    device: "str | torch.device" = "cuda",
    dtype: "Optional[torch.dtype]" = None,
    rank: int = 0,
    world: int = 1,
    names: Any = None,
    *,
    threads: Optional[int] = None,
    progress: Optional[bool] = None,
    limit_rate: "Optional[Union[int, float, str]]" = None,
    timeout: Optional[float] = None,
    shared: bool = False,
) -> "dict[str, torch.Tensor]":
    """The tensors of a .safetensors file or of a folder with shards, packed or not.

    `dtype` converts floating-point tensors on the way. Rank r of `world` gets its rows of every tensor (dimension 0,
    cut as torch.chunk does) and reads only those; scalars are whole. `names` are exact names, or patterns with *.
    `limit_rate` is the most bytes of files a second, such as "500MB". A read that fails for a moment is tried again for
    `timeout` seconds (30). `shared` reads cold files through the page cache: processes that want the same bytes then
    read them from the disk once.
    """
    import torch

    if world < 1 or not 0 <= rank < world:
        raise OptionError(f"invalid rank={rank}, world={world}: ranks are 0 to world - 1")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise OptionError(f"invalid dtype={dtype}: floating-point tensors are converted, to a floating-point type")
    target_device = torch.device(device)
    with Catalogue(path) as catalogue:
        other_names = aliases(catalogue)
        known = wholes(catalogue)
        wanted = choose([*known, *other_names], names)
        filler = Filler(catalogue, target_device, threads, progress, limit_rate=limit_rate, timeout=timeout, shared=shared)
        found: dict[str, torch.Tensor] = {}
        for name in dict.fromkeys(other_names.get(name, name) for name in wanted):
            stored, shape = torch_dtype(known[name].dtype), known[name].shape
            first, last = rows_of(shape, rank, world) if shape else (0, 0)
            final = dtype if dtype is not None and stored.is_floating_point and known[name].dtype != "F4" else stored
            mine = [last - first, *shape[1:]] if shape else []
            if final == stored and len(known[name].parts) == 1:
                tensor = catalogue.tensors[known[name].parts[0].number]
                found[name] = _place.empty(mine, stored, target_device, tensor, first * (tensor["bytes"] // shape[0] if shape and shape[0] else 0))
            else:
                found[name] = torch.empty(mine, dtype=final, device=target_device)
            filler.add_rows(known[name], first, found[name], stored)
        filler.run()
    return {name: found[other_names.get(name, name)] for name in wanted}


@dataclass(frozen=True)
class Loaded:
    """The result of load_into. Names tied to a loaded tensor are not missing. `on_meta` still has no memory."""

    loaded: "tuple[str, ...]"
    missing: "tuple[str, ...]"
    unexpected: "tuple[str, ...]"
    bytes: int
    on_meta: "tuple[str, ...]" = ()


def load_into(
    model: "torch.nn.Module",
    path: Path,
    *,
    strict: bool = True,
    device: "Optional[str | torch.device]" = None,
    threads: Optional[int] = None,
    progress: Optional[bool] = None,
    limit_rate: "Optional[Union[int, float, str]]" = None,
    timeout: Optional[float] = None,
    shared: bool = False,
) -> Loaded:
    """Fills a model's parameters and buffers, where they are and in their types.

    Nothing is changed if names or shapes do not match (`strict=False`: what matches is loaded). Parameters on the meta
    device are allocated on `device`; tied ones stay tied. Of a DTensor each rank reads its own part.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"invalid model of the type {type(model).__name__}: load_into fills a torch.nn.Module; load() gives tensors")
    state = model.state_dict(keep_vars=True)
    with Catalogue(path) as catalogue:
        stored_as = wholes(catalogue)
        other_names = aliases(catalogue)
        loadable = {name: tensor for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
        for name, tensor in loadable.items():
            if is_dtensor(tensor):
                _check_dtensor(name, tensor)
            elif not tensor.is_meta:
                memory_of(name, tensor)
        own = {_identity(tensor) for tensor in (*model.parameters(), *model.buffers()) if not _is_lazy(tensor)}
        groups: dict[Any, list[str]] = {}
        for name, tensor in loadable.items():
            groups.setdefault(_identity(tensor), []).append(name)
        chosen: dict[str, str] = {}
        missing: list[str] = []
        for tied in groups.values():
            source = next((found for name in tied for found in (name, other_names.get(name, "")) if found in stored_as), None)
            if source is None:
                missing.extend(tied)
            else:
                chosen[tied[0]] = source
        known = {*loadable, *(other_names.get(name, name) for name in loadable)}
        unexpected = [name for name in stored_as if name not in known]
        shapes = [
            f"{name}: {list(loadable[name].shape)} in the model, {stored_as[source].shape} in the file"
            for name, source in chosen.items()
            if list(loadable[name].shape) != stored_as[source].shape
        ]
        if shapes or (strict and (missing or unexpected)):
            hint = _prefix(missing, unexpected)
            raise NamesError(_mismatch(missing if strict else [], unexpected if strict else [], shapes, hint), tuple(missing), tuple(unexpected), tuple(shapes))
        place = torch.device(device) if device is not None else None
        fillers: dict[Any, Filler] = {}
        copies: list[tuple[Any, Any]] = []
        # Tensors that state_dict() made itself, as hooks and get_extra_state do: load_state_dict() takes them back.
        handed: dict[str, Any] = {}
        filled: list[Any] = []
        total = 0
        for name, source in chosen.items():
            tensor = loadable[name]
            stored = torch_dtype(stored_as[source].dtype)
            first = 0
            if tensor.is_meta:
                if place is None:
                    raise OptionError(f"{name} is on the meta device: say where it goes, such as device='cuda'")
                tensor = _materialise(model, groups[_identity(tensor)], tensor, place)
            elif _identity(tensor) not in own:
                tensor = handed[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            filled.append(tensor)
            data = tensor.detach()
            if is_dtensor(data):
                data, first, part, whole = _local(data)
                if whole is not None:
                    copies.append((data, whole[part]))
                    data = whole
            elif not data.is_contiguous():
                whole = torch.empty(data.shape, dtype=data.dtype, device=data.device)
                copies.append((data, whole))
                data = whole
            if data.device not in fillers:
                fillers[data.device] = Filler(catalogue, data.device, threads, progress, limit_rate=limit_rate, timeout=timeout, shared=shared)
            fillers[data.device].add_rows(stored_as[source], first, data, stored)
            total += data.numel() * stored.itemsize
        for filler in fillers.values():
            filler.run()
        with torch.no_grad():
            for to, whole in copies:
                to.copy_(whole)
            if handed:
                refused = model.load_state_dict(handed, strict=False).unexpected_keys
                if refused:
                    raise NamesError(f"the model does not take back what its state_dict() has: {', '.join(refused[:5])}", unexpected=tuple(refused))
        _changed(filled)
        left_out = set(missing)
        loaded = tuple(name for name in loadable if name not in left_out)
        on_meta = tuple(name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.is_meta)
        return Loaded(loaded, tuple(missing), tuple(unexpected), total, on_meta)


def _is_lazy(tensor: Any) -> bool:
    import torch

    return isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin)


def _changed(tensors: "list[Any]") -> None:
    """Counts the tensors' versions up, as copy_ does: a backward pass that saved an old value is an error then."""
    import torch

    increment = getattr(torch.autograd.graph, "increment_version", None)
    if increment is not None:
        for tensor in tensors:
            if not tensor.is_inference():
                increment(tensor)


def _identity(tensor: Any) -> Any:
    """Equal for names that are one tensor. Tensors of the meta device have no address: there the object counts."""
    if is_dtensor(tensor) and not tensor.is_meta:
        local = tensor.to_local()
        return ("part", _identity(local), tuple(tensor.shape)) if local.numel() else id(tensor)
    if tensor.is_meta or tensor.numel() == 0 or type(tensor).__name__ == "FakeTensor":
        return id(tensor)
    seen_as = (tensor.is_conj(), tensor.is_neg()) if tensor.is_complex() or tensor.is_floating_point() else ()
    return (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, seen_as)


def _check_dtensor(name: str, tensor: Any) -> None:
    """An error unless a rank's part of a DTensor is a block of it."""
    from torch.distributed.tensor import Replicate, Shard

    if tensor.is_meta:
        raise OptionError(f"{name!r} is a DTensor on the meta device: call model.to_empty(device=...) first")
    other = [of for of in tensor.placements if type(of) not in (Shard, Replicate)]
    if other:
        raise OptionError(f"{name!r} is a DTensor with the placement {other[0]}: load into the model before it is distributed")


def _local(tensor: Any) -> "tuple[Any, int, Any, Any]":
    """A rank's part of a DTensor, its first row, and, if rows are not whole, the part's place in whole ones."""
    import torch
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    local = tensor.to_local()
    if not shape:
        return local, 0, (), None
    if list(shape[1:]) == list(tensor.shape[1:]) and local.is_contiguous():
        return local, offsets[0], (), None
    part = (slice(None), *(slice(offset, offset + length) for offset, length in zip(offsets[1:], shape[1:])))
    whole = torch.empty([shape[0], *tensor.shape[1:]], dtype=tensor.dtype, device=local.device)
    return local, offsets[0], part, whole


def _prefix(missing: "list[str]", unexpected: "list[str]") -> str:
    """Help for names that have a prefix on one side and not on the other, as wrappers of models give them."""
    for longer, shorter, what in (
        (missing, unexpected, "the model's names begin with {}: pass the model inside of the wrapper (model.module, model._orig_mod)"),
        (unexpected, missing, "the files' names begin with {}, because a wrapped model was saved: load() them and take it off the names"),
    ):
        names = set(shorter)
        found = next((longer[0][: -len(name)] for name in shorter if longer and longer[0].endswith(f".{name}")), None)
        if found and all(name.startswith(found) and name[len(found) :] in names for name in longer):
            return what.format(repr(found))
    return ""


def _materialise(model: Any, names: "list[str]", tensor: Any, device: Any) -> Any:
    """Memory for a tensor of the meta device, in every module that has it."""
    import torch

    data = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    made = torch.nn.Parameter(data, requires_grad=tensor.requires_grad) if is_parameter else data
    for name in names:
        folder, _, last = name.rpartition(".")
        module = model.get_submodule(folder)
        (module._parameters if is_parameter else module._buffers)[last] = made
    return made


def _mismatch(missing: "list[str]", unexpected: "list[str]", shapes: "list[str]", hint: str = "") -> str:
    def shown(names: "list[str]") -> str:
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    parts = []
    if missing:
        parts.append(f"{len(missing)} of the model are in no file ({shown(missing)})")
    if unexpected:
        parts.append(f"{len(unexpected)} of the files are not in the model ({shown(unexpected)})")
    if shapes:
        parts.append(f"{len(shapes)} have another shape ({shown(shapes)})")
    help_text = "name the files of this model" if shapes else "name the files of this model, or pass strict=False to load what matches"
    return f"tensors do not match: {'; '.join(parts)}; nothing was loaded; {hint or help_text}"
