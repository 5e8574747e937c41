"""Saving in the background: tensors are copied to host memory, and a thread writes them."""

import atexit
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    pass

_last: "Optional[Saving]" = None


class Saving:
    """A save under way. The process does not end before it has ended."""

    def __init__(self, files: "list[str]", is_copied: Callable[[], None], write: Callable[[], None]) -> None:
        global _last
        self.files = files
        self._failure: Optional[BaseException] = None
        self._is_told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(is_copied, write), name="gapless-save")
        _last = self
        self._thread.start()

    def _run(self, is_copied: Callable[[], None], write: Callable[[], None]) -> None:
        try:
            is_copied()
            write()
        except BaseException as failure:
            self._failure = failure
        finally:
            self._ended.set()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout: Optional[float] = None) -> "list[str]":
        """Waits until the files are there, and returns them; raises what went wrong, or TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self.files[0]} is not written after {timeout} s: wait longer, the save goes on")
        self._thread.join()
        if self._failure is not None:
            self._is_told = True
            raise self._failure
        return self.files

    def __repr__(self) -> str:
        state = "running" if not self.done() else "failed" if self._failure else "done"
        return f"<Saving {self.files[0]!r}: {state}>"


def settle() -> None:
    """Waits for the save before this one: two at once would need twice the host memory. Raises its failure, once."""
    global _last
    last, _last = _last, None
    if last is None:
        return
    last._ended.wait()
    if last._failure is not None and not last._is_told:
        last.wait()


@atexit.register
def _tell() -> None:
    # Threads have ended by now. A failure that the program has not asked for must not be lost.
    if _last is not None and _last._failure is not None and not _last._is_told:
        sys.stderr.write(f"gapless: {_last.files[0]} was not saved: {_last._failure}\n")


def copied(files: "Sequence[dict[str, Any]]") -> "tuple[list[dict[str, Any]], Callable[[], None]]":
    """Copies of all tensors in host memory, and a function that waits until they are complete.

    Copies from a GPU run on a stream of their own. What the caller's stream does later waits for them on the GPU, so
    the next step of the training may change the tensors; the caller itself does not wait.
    """
    import torch

    streams: dict[Any, Any] = {}
    kept: list[dict[str, torch.Tensor]] = []
    for tensors in files:
        kept.append({})
        for name, tensor in tensors.items():
            if tensor.device.type != "cuda":
                kept[-1][name] = tensor.detach().clone(memory_format=torch.contiguous_format)
                continue
            device = tensor.device
            if device not in streams:
                streams[device] = torch.cuda.Stream(device)
                streams[device].wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.device(device):
                on_card = tensor.detach().contiguous()
                if on_card.data_ptr() != tensor.data_ptr():
                    # The caller's stream makes this copy, so the other stream waits for it.
                    streams[device].wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(streams[device]):
                    to = torch.empty(on_card.shape, dtype=on_card.dtype, pin_memory=True)
                    to.copy_(on_card, non_blocking=True)
                on_card.record_stream(streams[device])
            kept[-1][name] = to
    events = []
    for device, stream in streams.items():
        event = torch.cuda.Event()
        event.record(stream)
        torch.cuda.current_stream(device).wait_event(event)
        events.append(event)

    def is_copied() -> None:
        for event in events:
            event.synchronize()

    return kept, is_copied
