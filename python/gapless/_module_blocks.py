"""Blocks that modules own, whatever code allocated them: parameters, buffers, gradients and optimizer states.

They are found by their addresses: in a snapshot of torch when it is taken, in the flight recorder's file after the
first call of a model, when an optimizer has made new state, and at the end.
"""

import functools
import sys
import time
import weakref
from collections.abc import Iterator
from typing import Any, Optional

from . import _module_tellers, _modules

# The stage of such a note in a snapshot's `external_annotations`; rows.rs of gapless-ingest reads it.
STAGE = "BLOCK"

_optimizers: Any = weakref.WeakSet()
# The number of states that each had when the recorder was last told.
_known_state: Any = weakref.WeakKeyDictionary()


def watch(torch: Any) -> None:
    """Looks for optimizers, and adds the notes to snapshots."""
    after = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
    if after is not None:
        after(_stepped)
    memory = torch.cuda.memory
    original = memory._snapshot

    @functools.wraps(original)
    def snapshot(*args: Any, **kwargs: Any) -> Any:
        taken = original(*args, **kwargs)
        try:
            _add_to(taken)
        except Exception as error:
            # A snapshot without some names is better than none.
            print(f"gapless: the snapshot lacks names of parameters: {error!r}", file=sys.stderr)
        return taken

    memory._snapshot = snapshot


def _add_to(taken: Any) -> None:
    annotations = taken.get("external_annotations") if isinstance(taken, dict) else None
    # The notes name blocks of the recorded history; without a history they have no use.
    if not isinstance(annotations, list) or not any(taken.get("device_traces") or ()):
        return
    now = time.time_ns() // 1000
    for device, addr, _, path in blocks():
        annotations.append({"name": f"module: {path}", "stage": STAGE, "device": device, "time_us": now, "addr": addr})


def tell_recorder(names: Optional["_modules.ModuleNames"] = None) -> None:
    """Tells the flight recorder of the blocks of a model, or of all models and optimizers."""
    library = _module_tellers.library()
    if library is None:
        return
    for device, addr, size, path in blocks(names):
        library.optional("gapless_module_block", device, addr, size, _module_tellers.number(_modules.Place(path)))


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if _modules._torch.compiler.is_compiling():
        return
    _optimizers.add(optimizer)
    if _module_tellers.library() is not None and _known_state.get(optimizer) != len(optimizer.state):
        _known_state[optimizer] = len(optimizer.state)
        tell_recorder()


def blocks(names: Optional["_modules.ModuleNames"] = None) -> Iterator[tuple[int, int, int, str]]:
    """Device, address, bytes and path of each storage that modules own."""
    torch = _modules._torch
    owners: dict[tuple[int, int, int], str] = {}
    of_parameters: dict[int, str] = {}

    def add(tensor: Any, path: str) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        tensor = getattr(tensor, "_local_tensor", tensor)
        try:
            if tensor.device.type != "cuda":
                return
            storage = tensor.untyped_storage()
            key = (storage.device.index, storage.data_ptr(), storage.nbytes())
        except (AttributeError, NotImplementedError, RuntimeError):
            # A tensor without memory of its own.
            return
        if key[1]:
            # FSDP and DDP keep many parameters in one block: it gets the path that they have in common.
            owners[key] = _common(owners[key], path) if key in owners else path

    for module, place in _modules.named(names):
        try:
            tensors = [tensor for held in (module._parameters, module._buffers) for _, tensor in held.items()]
        except (AttributeError, RuntimeError):
            continue
        for tensor in tensors:
            if tensor is None:
                continue
            of_parameters.setdefault(id(tensor), place.path)
            add(tensor, place.path)
            add(getattr(tensor, "grad", None) if getattr(tensor, "is_leaf", False) else None, place.path)
    for optimizer in list(_optimizers) if names is None else ():
        for parameter, state in list(optimizer.state.items()):
            path = of_parameters.get(id(parameter))
            if path is not None and isinstance(state, dict):
                for tensor in list(state.values()):
                    add(tensor, path)
    for (device, addr, size), path in owners.items():
        if path:
            yield device, addr, size, path


def _common(one: str, other: str) -> str:
    """The path that both are below; the first part of it may be a model's name."""
    if one == other:
        return one
    parts = []
    for a, b in zip(one.split("."), other.split(".")):
        if a != b:
            break
        parts.append(a)
    return ".".join(parts)
