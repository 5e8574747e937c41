"""GAPLESS_CHECK=1: one line on standard error when the process ends, that says what was checked and what was not.

Only in the process that enabled it, and only if that used a GPU.
"""

import atexit
import os
import sys
from typing import Any

from ._library import Library
from ._stats import size_text

PREFIX = "gapless.check."


def print_at_exit(library: Library) -> None:
    atexit.register(_print, library, os.getpid())


def line(device: int, stats: dict[str, Any]) -> str:
    """The line for one device."""
    count = {name[len(PREFIX) :]: value for name, value in stats.items() if name.startswith(PREFIX)}
    found = count.get("findings", 0)
    said = "nothing was wrong" if found == 0 else f"{found} finding{'s' if found > 1 else ''}: see above"
    return (
        f"gapless check: cuda:{device} {size_text(count.get('filled_bytes', 0))} filled when freed, "
        f"{size_text(count.get('verified_bytes', 0))} verified before use, {size_text(count.get('skipped_bytes', 0))} skipped; {said}"
    )


def _print(library: Library, owner: int) -> None:
    torch = sys.modules.get("torch")
    if torch is None or os.getpid() != owner or not torch.cuda.is_initialized():
        return
    from ._tools import flat

    for device in range(torch.cuda.device_count()):
        stats = flat(library.stats(device))
        if PREFIX + "filled_bytes" in stats:
            try:
                print(line(device, stats), file=sys.stderr, flush=True)
            except (OSError, ValueError):
                # Standard error is closed, and the process has to end all the same.
                pass
