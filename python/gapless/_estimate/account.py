"""The holders of memory at the peak, by kind and module path, from torch's own record of its allocations.

While the program runs, hooks mark which module is at work (in the record's metadata), and note at which moment which
addresses belong to parameters, gradients and optimizer states. Afterwards the record is walked once, to the moment at
which most was allocated.
"""

import threading
import time
from typing import Any, Callable, Optional

import torch

# torch's allocator hands out blocks in multiples of this.
_GRAIN = 512

KINDS = ("parameters", "gradients", "optimizer states", "activations and workspaces")


class Marks:
    """Notes taken while the program runs. `mode` is also active if torch calls modules from a thread of its own."""

    def __init__(self, mode: Any = None) -> None:
        self._mode = mode
        self.moments: list[tuple[int, str, set[int]]] = []
        self.optimizers: dict[int, int] = {}
        self.calls = 0
        # True if an optimizer decides by its loss how often it evaluates the model.
        self.searches = False
        self.before_step: Optional[Callable[[], None]] = None
        self.after_step: Optional[Callable[[], None]] = None
        # Called with each call of an outermost module, and with the first inputs there, maybe those of a module inside.
        self.called: Optional[Callable[[], None]] = None
        self.given: Optional[Callable[[Any], None]] = None
        self._waits = False
        self._paths: dict[int, str] = {}
        # Of each thread: the paths of the modules at work, and whether the mode was entered with each.
        self._local = threading.local()

    def install(self) -> None:
        from torch.nn.modules import module
        from torch.optim import optimizer

        module.register_module_forward_pre_hook(self._enter)
        module.register_module_forward_hook(self._leave, always_call=True)
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)

    def note(self, kind: str, tensors: Any) -> None:
        """At this moment these tensors are of this kind."""
        held = {_address(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.is_cuda}
        self.moments.append((time.time_ns() // 1000, kind, held))

    def _enter(self, module: Any, inputs: Any) -> None:
        stack: list[tuple[str, bool]] = self._local.__dict__.setdefault("stack", [])
        # Recomputation runs in the thread of the backward pass, which has no mode.
        entered = self._mode is not None and torch._C._len_torch_function_stack() == 0
        if entered:
            self._mode.__enter__()
        if not stack:
            self.calls += 1
            self._waits = self.given is not None
            if self.called is not None:
                self.called()
            if id(module) not in self._paths:
                self._paths.update({id(part): name for name, part in module.named_modules()})
                self.note("parameters", [*module.parameters(), *module.buffers()])
        if self._waits and self.given is not None and any(isinstance(word, torch.Tensor) for word in inputs):
            self._waits = False
            self.given(inputs)
        path = self._paths.get(id(module), "") or type(module).__name__
        stack.append((path, entered))
        _set_metadata(path)

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        stack: list[tuple[str, bool]] = self._local.__dict__.setdefault("stack", [])
        if stack and stack.pop()[1]:
            self._mode.__exit__(None, None, None)
        _set_metadata(stack[-1][0] if stack else "")

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.searches |= isinstance(optimizer, torch.optim.LBFGS)
        if self.before_step is not None:
            self.before_step()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.note("parameters", parameters)
        self.note("gradients", [parameter.grad for parameter in parameters])

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.note("optimizer states", [value for state in optimizer.state.values() if isinstance(state, dict) for value in state.values()])
        self.optimizers[id(optimizer)] = self.optimizers.get(id(optimizer), 0) + 1
        if self.after_step is not None:
            self.after_step()


def _address(tensor: Any) -> int:
    """The address of the tensor's storage; of a sharded tensor that of this rank's part; 0 if it has no storage."""
    local = getattr(tensor, "_local_tensor", tensor)
    try:
        return int(local.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def _set_metadata(text: str) -> None:
    setter = getattr(torch.cuda.memory, "_set_memory_metadata", None)
    if setter is not None:
        setter(text)


def account(events: "list[dict[str, Any]]", moments: "list[tuple[int, str, set[int]]]", since: int) -> "tuple[dict[str, int], list[dict[str, Any]]]":
    """Bytes by kind and by module at the peak after the moment `since`: the sums are those of the record."""
    live: dict[int, list[Any]] = {}
    held = most = 0
    peak = 0
    waiting = sorted(moments, key=lambda moment: moment[0])
    kinds: dict[int, str] = {}
    index = 0
    for number, event in enumerate(events):
        while index < len(waiting) and waiting[index][0] <= event.get("time_us", 0):
            _label(waiting[index], live, kinds)
            index += 1
        if event["action"] == "alloc":
            size = -(-event["size"] // _GRAIN) * _GRAIN
            live[event["addr"]] = [number, size, event.get("user_metadata") or ""]
            held += size
            if held > most and event.get("time_us", 0) >= since:
                most, peak = held, number
        elif event["action"] == "free_completed" and event["addr"] in live:
            held -= live.pop(event["addr"])[1]
    for moment in waiting[index:]:
        _label(moment, live, kinds)
    return _sums(events, peak, kinds)


def _label(moment: "tuple[int, str, set[int]]", live: "dict[int, list[Any]]", kinds: "dict[int, str]") -> None:
    for address in moment[2]:
        if address in live:
            kinds.setdefault(live[address][0], moment[1])


def _sums(events: "list[dict[str, Any]]", peak: int, kinds: "dict[int, str]") -> "tuple[dict[str, int], list[dict[str, Any]]]":
    at_peak: dict[int, tuple[int, int, str]] = {}
    for number, event in enumerate(events[: peak + 1]):
        if event["action"] == "alloc":
            at_peak[event["addr"]] = (number, -(-event["size"] // _GRAIN) * _GRAIN, event.get("user_metadata") or "")
        elif event["action"] == "free_completed":
            at_peak.pop(event["addr"], None)
    by_kind = dict.fromkeys(KINDS, 0)
    by_module: dict[tuple[str, str], int] = {}
    for number, size, path in at_peak.values():
        kind = kinds.get(number, KINDS[-1])
        by_kind[kind] += size
        by_module[(path, kind)] = by_module.get((path, kind), 0) + size
    modules = [{"module": path, "kind": kind, "bytes": size} for (path, kind), size in sorted(by_module.items(), key=lambda item: -item[1])]
    return by_kind, modules
