"""Values of storages: what torch.load brings to the card, and what torch.save takes from it.

Both copy storages below the calls that `Values` sees. A storage that was filled from the host keeps a copy of what
came, and one that is copied to the host gives the value of the tensor that it belongs to.
"""

from typing import Any, Callable

import torch

# Larger ones are not kept: control flow hangs on small tensors.
_MOST = 32 << 20
_KEPT = "gapless_kept"


def keep(value_of: "Callable[[Any], Any]", learn: "Callable[[Any, Any], None]", seen: "Callable[[], None]") -> None:
    """Copies of storages bring values along from here on.

    value_of(storage) is a tensor of the host, or None. learn(tensor, value) hears of tensors that were put on a storage
    of the card whose contents are known: torch calls this without asking modes. seen() is called after the card was
    read for a file: no control flow hangs on that.
    """
    plain, plain_set = torch.UntypedStorage.copy_, torch.Tensor.set_

    def set_(self: Any, *args: Any, **words: Any) -> Any:
        out = plain_set(self, *args, **words)
        found = getattr(args[0], _KEPT, None) if self.is_cuda and len(args) == 4 else None
        if found is not None:
            learn(self, plain_set(torch.empty(0, dtype=self.dtype), found, *args[1:]))
        return out

    def copy_(self: Any, source: Any, *args: Any, **words: Any) -> Any:
        out = plain(self, source, *args, **words)
        seen()
        own = getattr(source, "device", None)
        if own is None or self.nbytes() > _MOST or source.nbytes() != self.nbytes():
            return out
        if self.device.type == "cuda" and own.type == "cpu":
            setattr(self, _KEPT, source.clone())
        elif self.device.type == "cpu" and own.type == "cuda":
            value = value_of(source)
            found = value.untyped_storage() if value is not None else getattr(source, _KEPT, None)
            if found is not None and found.nbytes() == self.nbytes():
                plain(self, found)
        return out

    torch.UntypedStorage.copy_, torch.Tensor.set_ = copy_, set_
