"""GAPLESS_STATS=1: one line on standard error when the process ends.

Only in the process that enabled it: a forked child that leaves through atexit has nothing of its own to tell.
"""

import atexit
import os
import sys
from typing import Any

from ._library import Library

# Devices that a process may use.
_DEVICES = 64


def print_at_exit(library: Library, *, alone: bool = False) -> None:
    """`alone`: others than torch use the library, so that torch need not be there."""
    atexit.register(_print, library, os.getpid(), alone)


def line(by_device: dict[int, dict[str, Any]]) -> str:
    """The line, for the devices that were used."""
    return "gapless: " + ("; ".join(_about(device, stats) for device, stats in sorted(by_device.items())) or "the GPU was not used")


def _about(device: int, stats: dict[str, Any]) -> str:
    # torch's peaks can be reset by the program; the library's own are of the whole run.
    allocated = stats.get("gapless.peak_allocated", stats.get("allocated_bytes.all.peak", 0))
    reserved = stats.get("gapless.peak_reserved", stats.get("reserved_bytes.all.peak", 0))
    lost = 100 * (1 - allocated / reserved) if reserved else 0.0
    driver = stats.get("gapless.driver_ns", 0) / 1e9
    return (
        f"cuda:{device} peak allocated {size_text(allocated)}, peak reserved {size_text(reserved)}, fragmentation {lost:.1f} %, "
        f"{stats.get('gapless.pages_harvested', 0)} pages harvested, {driver:.3f} s in the driver"
    )


def size_text(count: int) -> str:
    """Bytes as people read them."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count} B"


def _print(library: Library, owner: int, alone: bool) -> None:
    torch = sys.modules.get("torch")
    if (torch is None and not alone) or os.getpid() != owner:
        return
    count = _DEVICES if alone else 0
    if not alone and torch is not None and torch.cuda.is_initialized():
        count = torch.cuda.device_count()
    by_device = {}
    if count:
        from ._tools import flat

        for device in range(count):
            stats = flat(library.stats(device))
            if stats.get("reserved_bytes.all.allocated", 0) or stats.get("reserved_bytes.all.peak", 0):
                by_device[device] = stats
    if not by_device and os.environ.get("GAPLESS_RUN") == "1":
        # `gapless run` also reaches launchers and workers that only import torch.
        return
    try:
        print(line(by_device), file=sys.stderr, flush=True)
    except (OSError, ValueError):
        # Standard error is closed, and the process has to end all the same.
        pass
