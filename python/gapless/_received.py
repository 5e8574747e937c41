"""Tensors that are sent to processes without Gapless.

torch's own allocator opens memory of Gapless only if all its pages have one size. A handle of this process's memory is
sent as an object that has its reader import this module. The reader then enables Gapless before it starts CUDA for the
first tensor, so that it can open all that follow. A process that passes handles on, and opens none, stays as it is.
"""

import functools
import sys
from typing import Any

from ._errors import GaplessError

# The second byte of a handle is its kind (crates/gapless-torch/src/sharing/handle.rs): pages of one size, which torch
# writes too, and others, which only Gapless reads.
_ONE_SIZE, _OWN = b"e", b"g"


class _Handle(bytes):
    """A handle of memory of a process with Gapless."""

    def __reduce__(self) -> Any:
        return received, (bytes(self),)


def mark(torch: Any) -> None:
    """Marks the handles that this process gives away as those of memory of Gapless."""
    share = torch.UntypedStorage._share_cuda_

    @functools.wraps(share)
    def share_and_mark(storage: Any, *arguments: Any, **keywords: Any) -> Any:
        shared = share(storage, *arguments, **keywords)
        return tuple(_Handle(part) if _is_of_pages(at, part) else part for at, part in enumerate(shared))

    torch.UntypedStorage._share_cuda_ = share_and_mark


def _is_of_pages(at: int, part: Any) -> bool:
    # The handle follows the device.
    return at == 1 and type(part) is bytes and part[1:2] in (_ONE_SIZE, _OWN)


def received(handle: bytes) -> bytes:
    """The handle, in the process that received it: it may open the memory now, or pass the handle on."""
    reductions = sys.modules.get("torch.multiprocessing.reductions")
    # torch asks this function whether it has opened a handle before, and starts CUDA only after that.
    find = getattr(reductions, "storage_from_cache", None)
    if find is not None and not hasattr(find, "of_gapless"):

        def enable_and_find(cls: Any, key: Any) -> Any:
            if isinstance(key, tuple) and isinstance(key[0], _Handle):
                _enable_for(key[0])
            return find(cls, key)

        enable_and_find.of_gapless = True  # type: ignore[attr-defined]
        reductions.storage_from_cache = enable_and_find  # type: ignore[union-attr]
    return _Handle(handle)


def _enable_for(handle: bytes) -> None:
    """Enables Gapless in this process. If that is not possible, and torch cannot open the handle, it raises."""
    from . import _session

    why = "It has started CUDA without gapless: call gapless.enable() in it before its first use of CUDA"
    if _session.enabled():
        return
    if not sys.modules["torch"].cuda.is_initialized():
        try:
            if _session.enable():
                return
            why = f"Gapless is off here: {_session.disable_reason()}"
        except GaplessError as error:
            why = f"Gapless cannot be enabled here: {error}"
    if handle[1:2] == _OWN:
        raise GaplessError(f"this process received a CUDA tensor whose memory only gapless can open, since its pages have several sizes. {why}")
