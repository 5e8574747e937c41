"""Values of storages: what torch.load brings to the card, and what torch.save takes from it.

Both copy storages below the calls that `Values` sees.
"""

from typing import Any, Callable

import torch

from .known import Known


def keep(known: Known, seen: "Callable[[], None]") -> None:
    """Copies of storages bring values along from here on. seen() is called after the card was read for a file, because
    no control flow depends on that."""
    plain = torch.UntypedStorage.copy_

    def copy_(self: Any, source: Any, *args: Any, **words: Any) -> Any:
        out = plain(self, source, *args, **words)
        seen()
        own = getattr(source, "device", None)
        if own is None or source.nbytes() != self.nbytes():
            return out
        if self.device.type == "cuda":
            known.forget_storage(self)
            found = _bytes(source) if own.type == "cpu" else known.storage(source)
            if found is not None:
                known.learn_storage(self, found)
        elif own.type == "cuda":
            found = known.storage(source)
            if found is not None:
                plain(self, found.untyped_storage())
        return out

    torch.UntypedStorage.copy_ = copy_


def _bytes(storage: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
