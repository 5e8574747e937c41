"""Saved tensors of steps without a plan: those that would exceed the budget wait on the host. So a step that does not
fit with everything kept is recorded in the memory that there is. `gapless.offload` decides what moves, and copies.
"""

from typing import Any, Optional

from .._errors import GaplessError
from .._offload import Offload
from .._offload_keeper import Kept

# A share of the budget that stays free of what is counted: one part in so many.
_MARGIN = 16


class Waiting:
    """A saved tensor that may be on the host. It holds the token of its step."""

    __slots__ = ("saved", "token")

    def __init__(self, saved: Any, token: Any) -> None:
        self.saved, self.token = saved, token

    def unpack(self) -> Any:
        return self.saved.unpack()


def has_alias(saved: Any) -> bool:
    """True if a saved tensor holds its original: a copy that is complete does not need it."""
    return isinstance(saved, Kept) or saved.number in saved.stash.aliases


class Aside:
    """The tensors of one device within a budget."""

    def __init__(self, scope: Offload, keeper: Any) -> None:
        scope._prepare()
        self._scope, self._keeper = scope, keeper

    def pack(self, tensor: Any) -> Any:
        """An object whose unpack() gives the tensor."""
        return self._scope._pack(tensor)

    def moved(self) -> int:
        """Bytes that went to the host so far."""
        return int(self._keeper.counts["bytes_out"])

    def ahead(self) -> int:
        """Bytes that came back and were not asked for so far."""
        return int(self._keeper.ahead())


def aside_of(device: Any, budget: int, min_size: int) -> Optional[Aside]:
    """None on the CPU, and if the library that pins memory is missing: then everything stays."""
    if device.type != "cuda":
        return None
    # With torch's own allocator the offloader sees memory only when tensors are saved or asked for.
    scope = Offload(budget=budget - budget // _MARGIN, min_size=min_size, device=device.index)
    try:
        return Aside(scope, scope._find(device.index))
    except (GaplessError, OSError):
        return None
