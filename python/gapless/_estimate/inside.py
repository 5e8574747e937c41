"""Inside the operators of other libraries: their code in C++ calls torch, and reads lengths and counts on its way.

A mode of the dispatcher is active only there. Elsewhere it would change torch's own path, and with it the memory.
"""

from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_OWN = {"aten", "prim", "prims", "_c10d_functional", "c10d", "profiler", "higher_order", "inductor", "quantized"}


def is_foreign(function: Any) -> bool:
    """True if a function is an operator that another library registered."""
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace not in _OWN
    return isinstance(function, torch._ops.OpOverloadPacket) and function._qualified_op_name.partition("::")[0] not in _OWN


class Inside(TorchDispatchMode):  # type: ignore[misc]
    """`call(function, name, args, kwargs)` runs one of torch's own functions, and follows the values."""

    def __init__(self, call: "Callable[[Any, str, Any, Any], Any]") -> None:
        super().__init__()
        self._follow = call

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_foreign(function):
            # Runs the kernel itself, with this mode active within it.
            with self:
                return function._op_dk(torch._C.DispatchKey.CUDA, *args, **kwargs)
        name = function.overloadpacket.__name__
        return self._follow(function, "item" if name == "_local_scalar_dense" else name, args, kwargs)
