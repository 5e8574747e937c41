"""The identity of a save: each of its files has the same text in its metadata, so that files of two saves, of which
one was interrupted, never load together. The native library compares the texts."""

import sys
import uuid
from typing import Optional

from .._errors import OptionError

# "IDENTITY/FILES", or "IDENTITY" if each rank writes one file.
SAVE = "gapless_save"
# Keys of packed files.
RESERVED = "gapless."
_calls = 0


def of_files(count: int) -> str:
    return f"{uuid.uuid4().hex}/{count}"


def of_ranks(given: Optional[str], rank: int, world: int) -> Optional[str]:
    """The identity that all ranks write: the caller's, or one that they agree on by torch.distributed's store."""
    global _calls
    if given is not None:
        if not isinstance(given, str) or not given or "/" in given:
            raise OptionError(f"invalid identity={given!r}: use a text without '/' that all ranks give alike, such as 'step-1000'")
        return given
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if (distributed.get_rank(), distributed.get_world_size()) != (rank, world):
        return None
    # The first rank to come sets it. No rank waits for another.
    _calls += 1
    store = distributed.distributed_c10d._get_default_store()
    agreed = store.compare_set(f"gapless_save/{_calls}", "", uuid.uuid4().hex)
    return str(agreed.decode())
