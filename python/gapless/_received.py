"""Tensors that are sent to processes without Gapless, although only Gapless can open their memory.

torch's own allocator opens memory whose pages have one size. The handle of other memory is sent as an object that has
its reader import this module, and turn Gapless on, before torch looks at the handle.
"""

import functools
from typing import Any

from ._errors import GaplessError

# The second byte of a handle is its kind (crates/gapless-torch/src/sharing/handle.rs). This one is not torch's.
_OWN = b"g"


class _Handle(bytes):
    """A handle that only Gapless reads."""

    def __reduce__(self) -> Any:
        return opened_by_gapless, (bytes(self),)


def mark(torch: Any) -> None:
    """Handles that torch's own allocator cannot read say so when they are sent."""
    share = torch.UntypedStorage._share_cuda_

    @functools.wraps(share)
    def share_and_mark(storage: Any, *arguments: Any, **keywords: Any) -> Any:
        shared = share(storage, *arguments, **keywords)
        return tuple(_Handle(part) if _is_own(at, part) else part for at, part in enumerate(shared))

    torch.UntypedStorage._share_cuda_ = share_and_mark


def _is_own(at: int, part: Any) -> bool:
    # The handle follows the device.
    return at == 1 and type(part) is bytes and part[1:2] == _OWN


def opened_by_gapless(handle: bytes) -> bytes:
    """The handle, in the process that received it. Gapless is on there when this returns."""
    from . import _session, _torch

    if _session.enabled():
        return handle
    begin = "this process received a CUDA tensor whose memory only gapless can open, since its pages have several sizes. "
    if _torch.import_torch().cuda.is_initialized():
        raise GaplessError(begin + "It has started CUDA without gapless: call gapless.enable() in it before its first use of CUDA")
    if not _session.enable():
        raise GaplessError(f"{begin}Gapless is off here: {_session.disable_reason()}")
    return handle
