"""One copy of weights for several processes of one user.

    handle = gapless.share(model)            # the process that has the weights; pass the handle on, it is a short text
    gapless.attach(handle, model)            # another process: its model gets the same memory

A reader can read the memory and not write it. The memory stays as long as one of the processes has it. The library
finds and maps the pages (crates/gapless-torch/src/sharing); this file says what the tensors in them are, and checks a
model against that. See docs/sharing-weights.md.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _forks, _session
from ._errors import GaplessError

if TYPE_CHECKING:
    from ._library import Library

FORMAT = "gapless.share/1"
# Differences that an error names.
_MOST_NAMED = 8
_HANDLE_ROOM = 128

# Reentrant: a finalizer or a signal handler may run in the same thread while it holds the lock.
_lock = _forks.lock()
# By handle: the objects that have to stay alive while the handle is offered.
_offered: dict[str, Any] = {}


class Spec(NamedTuple):
    """A tensor as its owner describes it: where it lies in which storage, offset and strides in elements."""

    name: str
    storage: int
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Attached(Mapping[str, Any]):
    """The tensors that attach() mapped, by name. The memory stays mapped as long as one of them, or one of the model's
    parameters, exists.

    handle  what was attached
    nbytes  the bytes of the tensors; each storage counts once
    """

    def __init__(self, handle: str, tensors: dict[str, Any], nbytes: int) -> None:
        self.handle, self.nbytes = handle, nbytes
        self._tensors = tensors

    def __getitem__(self, name: str) -> Any:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __repr__(self) -> str:
        return f"<{len(self)} tensors, {self.nbytes} bytes, of {self.handle}>"


# ---- the owner ----


def share(model_or_tensors: Any, name: Optional[str] = None) -> str:
    """Lets other processes of this user read the memory of a model, or of tensors, on one GPU. It copies nothing.

    model_or_tensors  a torch.nn.Module (its parameters and buffers), a dict of tensors, a list of tensors, or a tensor
    name              a name for attach(), instead of the handle: 1 to 64 letters, digits, "_", "-" or "."

    Returns a handle: a short text, to pass on by an argument, a variable or a file. The memory stays until
    unshare(handle), or until this process has ended and no reader uses it. Readers see what this process writes to the
    tensors.
    """
    library = _session._on()
    from . import _torch

    torch = _torch.import_torch()
    tensors = _collected(torch, model_or_tensors)
    device = _device_of(torch, tensors)
    storages: dict[int, Any] = {}
    places: dict[int, int] = {}
    specs = []
    for key, tensor in tensors.items():
        storage = tensor.untyped_storage()
        at = places.setdefault(storage.data_ptr(), len(places))
        storages.setdefault(storage.data_ptr(), storage)
        specs.append(Spec(key, at, _dtype_name(tensor), tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())))
    # Writes to the tensors may still be queued: a reader must see them done.
    torch.cuda.synchronize(device)
    ranges = [(address, storage.nbytes()) for address, storage in storages.items()]
    try:
        return offer(library, device, ranges, specs, name, list(storages.values()))
    except _OneStorage as error:
        names = [spec.name for spec in specs if spec.storage == error.which]
        raise GaplessError(f"{names[0]!r} cannot be shared: {error}") from None


def unshare(handle: str) -> None:
    """Ends a share() of this process. Processes that have attached keep the memory; no other process can attach."""
    library = _session._on()
    if library.optional("gapless_unshare", handle.encode()) != 0:
        raise GaplessError(library.last_error())
    with _lock:
        _offered.pop(handle, None)


class _OneStorage(GaplessError):
    def __init__(self, which: int, message: str) -> None:
        super().__init__(message)
        self.which = which


def offer(library: "Library", device: int, ranges: Sequence[tuple[int, int]], specs: Sequence[Spec], name: Optional[str], kept: Any) -> str:
    """Offers storages (address and bytes of each) that hold these tensors; `kept` stays until the offer ends."""
    import ctypes

    text = json.dumps({"format": FORMAT, "tensors": [list(spec) for spec in specs]}, separators=(",", ":")).encode()
    flat = (ctypes.c_uint64 * max(2 * len(ranges), 1))(*(number for pair in ranges for number in pair))
    room, which = ctypes.create_string_buffer(_HANDLE_ROOM), ctypes.c_size_t()
    named = None if name is None else name.encode()
    failed = library.optional("gapless_share", device, flat, len(ranges), text, len(text), named, room, _HANDLE_ROOM, ctypes.byref(which))
    if failed:
        message = library.last_error()
        raise _OneStorage(which.value, message) if which.value < len(ranges) else GaplessError(message)
    handle = room.value.decode()
    with _lock:
        _offered[handle] = kept
    return handle


def _collected(torch: Any, given: Any) -> dict[str, Any]:
    if isinstance(given, torch.nn.Module):
        found = dict(given.named_parameters(remove_duplicate=False))
        found.update(given.named_buffers(remove_duplicate=False))
        what = f"the model {type(given).__name__}"
    elif isinstance(given, torch.Tensor):
        found, what = {"tensor": given}, "the tensor"
    elif isinstance(given, Mapping):
        found, what = dict(given), "the dict"
    elif isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        found, what = {str(at): tensor for at, tensor in enumerate(given)}, "the list"
    else:
        raise GaplessError(f"a {type(given).__name__} cannot be shared: pass a torch.nn.Module, a dict or a list of tensors, or a tensor")
    if not found:
        raise GaplessError(f"{what} has no tensors to share")
    for name, tensor in found.items():
        why = _why_not(torch, name, tensor)
        if why is not None:
            raise GaplessError(f"{name!r} cannot be shared: {why}")
    return found


def _why_not(torch: Any, name: Any, tensor: Any) -> Optional[str]:
    if not isinstance(name, str):
        return "the keys of the dict must be strings"
    if not isinstance(tensor, torch.Tensor):
        return f"it is a {type(tensor).__name__}, not a tensor"
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "it is sparse or quantized, and only plain tensors can be shared"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer if hasattr(torch.nn, "Buffer") else torch.Tensor):
        from torch.utils._python_dispatch import is_traceable_wrapper_subclass

        if is_traceable_wrapper_subclass(tensor):
            return f"it is a {type(tensor).__name__}, which wraps other tensors: share those"
    if tensor.device.type != "cuda":
        return f"it is on {tensor.device}, and shared tensors are on a GPU: move the model there first, with model.cuda()"
    return None


def _device_of(torch: Any, tensors: dict[str, Any]) -> int:
    by_device: dict[int, str] = {}
    for name, tensor in tensors.items():
        by_device.setdefault(tensor.device.index, name)
    if len(by_device) > 1:
        told = ", ".join(f"{name!r} is on cuda:{device}" for device, name in sorted(by_device.items()))
        raise GaplessError(f"a handle is for one GPU, and {told}: share the tensors of each GPU by themselves, as dicts")
    return next(iter(by_device))


def _dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


# ---- the reader ----


def attach(handle: str, model: Any = None, *, device: Any = None, strict: bool = True) -> Attached:
    """Maps memory that another process shares, to read. It copies nothing and takes no memory of this process.

    handle  what share() returned, or the name given to `gapless keep --name` or share(name=)
    model   a torch.nn.Module whose parameters and buffers become the shared ones. Build it on the meta device, so that
            it has no memory of its own: `with torch.device("meta"): model = Model()`. Without a model, attach() only
            returns the tensors
    device  the GPU that the memory is on, as this process numbers it; by default the current one
    strict  whether it is an error if the model lacks some of the shared tensors

    Names, shapes, dtypes and strides must be the model's. If they differ, a GaplessError says what is missing or
    different, and the model does not change. Parameters that are one object in the model stay one. Attached parameters
    have requires_grad=False, because an optimizer cannot write them.
    """
    if not isinstance(handle, str) or not handle or "\0" in handle:
        raise GaplessError(f"{handle!r} is not a handle: pass the text that gapless.share() returned, or a name")
    from . import _memory, _torch

    torch = _torch.import_torch()
    library = _memory._started()
    torch.cuda.init()
    index = int(torch.cuda._utils._get_device_index(device, optional=True))
    asked = library.optional("gapless_attach_ask", index, handle.encode())
    if asked < 0:
        raise GaplessError(f"{handle} cannot be attached: {library.last_error()}")
    try:
        count = int(library.optional("gapless_attach_count", asked))
        specs = _read(torch, handle, _text(library, asked), count)
        plan = None if model is None else _matched(torch, model, specs, strict)
        storages = _mapped(torch, library, asked, handle, count)
    finally:
        library.optional("gapless_attach_end", asked)
    tensors = {spec.name: _tensor(torch, handle, spec, storages[spec.storage]) for spec in specs.values()}
    if plan is not None:
        _put(torch, model, {key: tensors[name] for key, name in plan.items()})
    return Attached(handle, tensors, sum(storage.nbytes() for storage in storages))


def _text(library: "Library", asked: int) -> bytes:
    import ctypes

    length = int(library.optional("gapless_attach_text", asked, None, 0))
    room = ctypes.create_string_buffer(max(length, 1))
    library.optional("gapless_attach_text", asked, room, length)
    return room.raw[:length]


def _read(torch: Any, handle: str, text: bytes, storages: int) -> dict[str, Spec]:
    """The other process's description of the tensors, by name. Nothing in it is used before it was checked."""

    def bad(why: str) -> GaplessError:
        return GaplessError(f"{handle} cannot be attached: the description of its tensors is not understood ({why})")

    def whole(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60

    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad(str(error)) from None
    if not isinstance(said, dict) or said.get("format") != FORMAT or not isinstance(said.get("tensors"), list):
        raise bad(f"this version of gapless reads {FORMAT}")
    found: dict[str, Spec] = {}
    for row in said["tensors"]:
        if not isinstance(row, list) or len(row) != len(Spec._fields):
            raise bad("a tensor's row is not complete")
        name, storage, dtype, offset, shape, stride = row
        if not isinstance(name, str) or name in found or not isinstance(dtype, str):
            raise bad(f"the name or the dtype of {name!r}")
        if not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise bad(f"this torch has no dtype {dtype!r}, which {name!r} has")
        numbers = [shape, stride]
        if not all(isinstance(part, list) and all(whole(number) for number in part) for part in numbers) or len(shape) != len(stride):
            raise bad(f"the shape or the strides of {name!r}")
        if not (whole(offset) and whole(storage) and storage < storages):
            raise bad(f"the place of {name!r}")
        found[name] = Spec(name, storage, dtype, offset, tuple(shape), tuple(stride))
    return found


def _mapped(torch: Any, library: "Library", asked: int, handle: str, count: int) -> list[Any]:
    import ctypes

    tensors = (ctypes.c_void_p * max(count, 1))()
    if library.optional("gapless_attach_map", asked, tensors) != 0:
        raise GaplessError(f"{handle} cannot be attached: {library.last_error()}")
    return [tensor.untyped_storage() for tensor in taken(torch, library, tensors[:count])]


def taken(torch: Any, library: "Library", pointers: Sequence[Optional[int]]) -> list[Any]:
    """Makes byte tensors of the library's DLPack objects; if torch refuses one, none stays."""
    import ctypes

    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    made: list[Any] = []
    try:
        for pointer in pointers:
            made.append(torch.utils.dlpack.from_dlpack(new(pointer, b"dltensor", None)))
    except BaseException:
        for pointer in pointers[len(made) :]:
            library.optional("gapless_tensor_drop", pointer)
        raise
    return made


def _tensor(torch: Any, handle: str, spec: Spec, storage: Any) -> Any:
    dtype = getattr(torch, spec.dtype)
    last = spec.offset + sum((size - 1) * step for size, step in zip(spec.shape, spec.stride))
    is_empty = any(size == 0 for size in spec.shape)
    if not is_empty and (last + 1) * dtype.itemsize > storage.nbytes():
        raise GaplessError(f"{handle} cannot be attached: {spec.name!r} reaches beyond its storage of {storage.nbytes()} bytes")
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, spec.offset, spec.shape, spec.stride)


def _matched(torch: Any, model: Any, specs: dict[str, Spec], strict: bool) -> dict[int, str]:
    """For each tensor of the model (by identity) the name of the shared one. An error names what differs."""
    if not isinstance(model, torch.nn.Module):
        raise GaplessError(f"a {type(model).__name__} cannot be attached to: pass a torch.nn.Module, or no model to get the tensors alone")
    loose = _not_persistent(model)
    groups: dict[int, tuple[Any, list[str]]] = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        groups.setdefault(id(tensor), (tensor, []))[1].append(name)
    plan: dict[int, str] = {}
    missing, differ, known = [], [], set()
    for key, (tensor, names) in groups.items():
        known.update(names)
        there = [name for name in names if name in specs]
        if not there:
            # A buffer that is in no checkpoint keeps the model's own values, unless it has none.
            if tensor.device.type == "meta" or not loose.issuperset(names):
                missing.append(names[0])
            continue
        first = specs[there[0]]
        for other in there[1:]:
            if specs[other][1:] != first[1:]:
                differ.append(f"{first.name!r} and {other!r} are one tensor in the model and two in the share")
        differ.extend(_differences(tensor, first))
        plan[key] = first.name
    extra = sorted(set(specs) - known) if strict else []
    if missing or differ or extra:
        parts = []
        if missing:
            parts.append(f"the share lacks {_some(missing)}")
        if extra:
            parts.append(f"the model lacks {_some(extra)} (strict=False leaves them out)")
        if differ:
            parts.append("; ".join(differ[:_MOST_NAMED]) + (f"; and {len(differ) - _MOST_NAMED} more" if len(differ) > _MOST_NAMED else ""))
        raise GaplessError(f"the model does not match what is shared: {'; '.join(parts)}. The model was not changed")
    return plan


def _differences(tensor: Any, spec: Spec) -> list[str]:
    found = []
    if tuple(tensor.shape) != spec.shape:
        found.append(f"{spec.name!r} has the shape {tuple(tensor.shape)} in the model and {spec.shape} in the share")
    elif [step for step, size in zip(tensor.stride(), spec.shape) if size > 1] != [step for step, size in zip(spec.stride, spec.shape) if size > 1]:
        found.append(f"{spec.name!r} has the strides {tuple(tensor.stride())} in the model and {spec.stride} in the share")
    if _dtype_name(tensor) != spec.dtype:
        found.append(f"{spec.name!r} is {_dtype_name(tensor)} in the model and {spec.dtype} in the share")
    return found


def _some(names: list[str]) -> str:
    told = ", ".join(repr(name) for name in names[:_MOST_NAMED])
    return told + (f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else "")


def _not_persistent(model: Any) -> set[str]:
    found = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in module._non_persistent_buffers_set:
            found.add(f"{prefix}.{name}" if prefix else name)
    return found


def _put(torch: Any, model: Any, by_identity: dict[int, Any]) -> None:
    """Makes these tensors the model's. A parameter that can keep its identity does."""
    new: dict[int, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, old in list(held.items()):
                if old is None or id(old) not in by_identity:
                    continue
                if id(old) not in new:
                    new[id(old)] = _instead(torch, old, by_identity[id(old)])
                held[name] = new[id(old)]


def _instead(torch: Any, old: Any, tensor: Any) -> Any:
    if torch._has_compatible_shallow_copy_type(old, tensor):
        old.grad = None
        old.requires_grad_(False)
        old.data = tensor
        return old
    if isinstance(old, torch.nn.Parameter):
        made = torch.nn.Parameter(tensor, requires_grad=False)
        made.__dict__.update(old.__dict__)
        return made
    return tensor
