"""torch.compile, and a Module.__call__ that we have wrapped."""

import sys
from typing import Any


def skip(torch: Any, call: Any, *own: Any) -> None:
    """Makes torch.compile skip the frames of `call` and compile those below it, but for the functions `own`: with
    fullgraph=True a function of ours that cannot be compiled would be the program's error."""
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        for function in (call, *own):
            frames.skip_code(function.__code__)
    elif hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        frames.set_code_exec_strategy(call.__code__, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
        for function in own:
            frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, action.SKIP))


def tell_call(before: Any, after: Any) -> None:
    """Makes torch.compile treat the new __call__ as its own: only below a known one it goes straight to `forward`."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module: Any = sys.modules.get(name)
        if getattr(module, "unpatched_nn_module_call", None) is before:
            module.unpatched_nn_module_call = after
