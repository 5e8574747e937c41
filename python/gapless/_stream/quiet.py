"""Our own operations on tensors are none of the program's: no mode of the program sees them, and no tensor that they
make is an inference tensor."""

import contextlib
from collections.abc import Iterator
from typing import Any

_NOTHING: Any = contextlib.nullcontext()


def of(torch: Any) -> Any:
    """A context for our own operations; it costs next to nothing if the program has opened no mode."""
    if torch.is_inference_mode_enabled() or torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return _without_modes(torch)
    return _NOTHING


@contextlib.contextmanager
def _without_modes(torch: Any) -> Iterator[None]:
    from torch.utils._python_dispatch import _disable_current_modes

    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        yield
