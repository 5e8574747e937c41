"""`gapless run --stream-weights 8GiB`: models of a program that knows nothing of streams.

Where the program moves a model to the card (`.to("cuda")`, `.cuda()`, a pipeline's `.to()`), its weights stream, all
models of a process within one budget. transformers loads models for a `device_map` of one card on the host, and
they stream too. What the program builds on the card itself stays there.
"""

import functools
import importlib.util
import sys
import warnings
from typing import Any, Optional

from .._errors import GaplessError, GaplessWarning
from . import calls, moves
from .items import parts_of

# A model with fewer bytes than this is moved as ever: a loss, a small head.
LEAST = 8 << 20

_budget: Optional[int] = None
_streams: dict[int, Any] = {}
_torch: Any = None


def install(torch: Any, budget: int) -> None:
    global _budget, _torch
    _budget, _torch = budget, torch
    calls.watch_moves(torch)
    moves.taker = _take
    if "transformers.modeling_utils" in sys.modules:
        _wrap_loading(sys.modules["transformers.modeling_utils"])
    else:
        sys.meta_path.insert(0, _WhenTransformersIsImported())


def stream_of(index: int) -> Any:
    """The stream of a card, or None."""
    return _streams.get(index)


def _take(module: Any, fn: Any) -> bool:
    """Takes a model that is moved to the card. False: it is moved as ever."""
    torch = _torch
    tensors = [part for tensor in (*module.parameters(), *module.buffers()) for part in parts_of(torch, tensor)]
    if not tensors or any(tensor.is_meta or isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin) for tensor in tensors):
        return False
    if sum(tensor.nbytes for tensor in tensors if tensor.device.type == "cpu") < LEAST:
        return False
    with torch.no_grad():
        outcomes = {dtype: fn(torch.empty(1, dtype=dtype)) for dtype in {tensor.dtype for tensor in tensors}}
    devices = {outcome.device for outcome in outcomes.values()}
    device = next(iter(devices))
    if len(devices) > 1 or device.type != "cuda":
        return False
    index = device.index if device.index is not None else torch.cuda.current_device()
    if any(outcome.dtype != dtype for dtype, outcome in outcomes.items()):
        # The type first, on the host.
        moves.plain(module, lambda tensor: tensor.to(outcomes[tensor.dtype].dtype) if tensor.dtype in outcomes else tensor)
    from . import api

    label = f"{type(module).__name__}#{sum(1 for _ in _streams)}"
    try:
        if index in _streams:
            _streams[index].add(module, label)
        else:
            _streams[index] = api.stream({label: module}, _budget or 0, device=index)
    except (GaplessError, MemoryError) as error:
        warnings.warn(f"the weights of {label} do not stream, and move to the card: {error}", GaplessWarning, stacklevel=4)
        return False
    return True


class _WhenTransformersIsImported:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "transformers.modeling_utils":
            return None
        # The search below asks all finders, and would come back here.
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                del loader.exec_module
                execute(module)
                _wrap_loading(module)

            loader.exec_module = exec_module
        return spec


def _wrap_loading(modeling: Any) -> None:
    """from_pretrained(device_map="cuda") would fill the card before a stream could begin."""
    kind = getattr(modeling, "PreTrainedModel", None)
    if kind is None:
        return
    original = kind.from_pretrained.__func__

    @functools.wraps(original)
    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        device = _one_card(kwargs.get("device_map"))
        if device is None:
            return original(cls, *args, **kwargs)
        kwargs["device_map"] = "cpu"
        return original(cls, *args, **kwargs).to(device)

    kind.from_pretrained = classmethod(from_pretrained)


def _one_card(device_map: Any) -> Any:
    """The card, if a device_map means one; "auto" and its relatives mean all that there is."""
    torch = _torch
    if isinstance(device_map, dict):
        places = set(device_map.values())
        return _one_card(next(iter(places))) if len(places) == 1 else None
    if device_map in ("auto", "balanced", "balanced_low_0", "sequential"):
        return torch.device("cuda") if torch.cuda.device_count() == 1 else None
    try:
        device = torch.device("cuda", device_map) if isinstance(device_map, int) and not isinstance(device_map, bool) else torch.device(device_map)
    except (TypeError, RuntimeError):
        return None
    return device if device.type == "cuda" else None
