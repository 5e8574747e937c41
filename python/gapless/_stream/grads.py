"""Weights that a backward pass needs again. Autograd would keep each copy on the card that a forward pass used, so it
is given a note of the place instead; backward asks for the weight when it comes to it, in its own order, which is
recorded and followed as that of forward passes is.

A weight that was written to in place since the forward pass is torch's own error.
"""

import threading
from typing import Any, Optional

from .._errors import GaplessError
from .items import Held, Item


class Note:
    """The note that autograd keeps of a weight: where it lies, and its version."""

    __slots__ = ("held", "item", "runner", "versions")

    def __init__(self, runner: Any, item: Item, tensor: Any, start: int) -> None:
        self.runner, self.item = runner, item
        self.held = Held(tensor, tensor.storage_offset() - start // tensor.element_size())
        self.held.tensor = None
        self.versions = item.versions_now()


class Backward:
    """The backward pass that is under way, of one runner."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.run: Any = None
        self._frame: Any = None
        self._thread = 0

    def is_here(self) -> bool:
        """True in the thread of a backward pass: a checkpoint computes again there."""
        return self.run is not None and self._thread == threading.get_ident() and self._runner.card.torch._C._current_graph_task_id() >= 0

    def use(self, item: Item) -> None:
        """Autograd asks for a weight. The one before is not needed any more."""
        runner = self._runner
        if not self.is_here():
            self.end()
            # First: an interrupt below leaves no pass without its end.
            runner.card.torch.autograd.Variable._execution_engine.queue_callback(runner.over_in_backward)
            self._thread = threading.get_ident()
            self.run = runner.begin_backward()
        if self._frame is None or self._frame.items != (item,):
            if self._frame is not None:
                runner._end_call(self._frame)
            # Kept before it uses anything, so that whatever comes, end() finds it.
            self._frame = runner.frame_of_use(self.run, item)
            runner._prepare(self._frame, (item,), False)

    def end(self) -> None:
        """The pass is over, or it failed and told no one."""
        run, frame = self.run, self._frame
        if run is None:
            return
        if frame is not None:
            self._runner._end_call(frame)
        self.run = self._frame = None
        self._runner._end(run)


def push(runner: Any, frame: Any) -> None:
    """Lets a forward pass leave notes, unless other hooks see what autograd saves, or this is a recomputation."""
    torch = runner.card.torch
    graph = torch._C._autograd
    if not torch.is_grad_enabled() or torch._C._current_graph_task_id() >= 0 or graph._saved_tensors_hooks_get_disabled_error_message() is not None:
        return
    if graph._top_saved_tensors_default_hooks(True) is not None:
        return

    def pack(tensor: Any) -> Any:
        item: Optional[Item] = runner.by_storage.get(tensor.untyped_storage()._cdata) if type(tensor).__name__ != "FakeTensor" else None
        if item is None or item.storage is None or tensor.is_inference() or tensor.data_ptr() - item.storage.data_ptr() >= item.nbytes:
            return tensor
        return Note(runner, item, tensor, 0)

    frame.hooks = pack
    graph._push_saved_tensors_default_hooks(pack, _unpack)


def pop(runner: Any, frame: Any) -> None:
    """Takes the hooks of a pass off, if they are on: an interrupt may have come before either step."""
    graph = runner.card.torch._C._autograd
    top = graph._top_saved_tensors_default_hooks(True)
    if top is not None and top[0] is frame.hooks:
        graph._pop_saved_tensors_default_hooks()
    frame.hooks = None


def _unpack(saved: Any) -> Any:
    if type(saved) is not Note:
        return saved
    if saved.runner.is_over or not saved.item.held:
        raise GaplessError(f"{saved.item.name} is needed by a backward pass, and its stream has ended: call stop() after backward")
    if saved.versions != saved.item.versions_now():
        raise RuntimeError(
            f"one of the variables needed for gradient computation has been modified by an inplace operation: {saved.item.name}, which is streamed, "
            "was written to between the forward pass and backward"
        )
    return saved.runner.use_in_backward(saved.item, saved.held)
