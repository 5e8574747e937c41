"""How files are read: a limit, time-outs, and GAPLESS_WEIGHTS, which chooses among ways that give the same bytes.

GAPLESS_WEIGHTS is a list such as "cached=map,window=64M,ring=huge". It is for measurements on a machine: the defaults
are the best ways on the machines that were measured.
"""

import os
from typing import Any, Optional, Union

from .. import _options
from .._errors import OptionError

VARIABLE = "GAPLESS_WEIGHTS"
# Bits of `ways` in crates/gapless-loader/src/shared.rs.
MAPPED, HUGE, KEPT, CACHED, THREADS = 1, 2, 4, 8, 16
CHOICES: "dict[str, dict[str, int]]" = {
    # Cached bytes that go to a GPU: copied to pinned memory, or from the mapped file, pinned in place.
    "cached": {"copy": 0, "map": MAPPED},
    # Pinned memory: the driver's, or huge pages that are pinned.
    "ring": {"driver": 0, "huge": HUGE},
    # Pinned memory, streams and the kernel: freed after the load, or kept for the next one.
    "keep": {"no": 0, "yes": KEPT},
    # Direct reads of cold files.
    "direct": {"uring": 0, "threads": THREADS, "no": CACHED},
}
DEFAULTS = {"cached": "copy", "ring": "huge", "keep": "yes", "direct": "uring"}


def rate(given: "Optional[Union[int, float, str]]") -> int:
    """Bytes a second; 0 for no limit."""
    if given is None:
        return 0
    found = size(given) if isinstance(given, str) else int(given)
    if found is None or found < 1:
        raise OptionError(f"invalid limit_rate={given!r}: use bytes a second, such as 500_000_000 or '500MB'")
    return found


def size(text: str) -> Optional[int]:
    """Bytes of a number with a unit; None if it is not one."""
    try:
        return _options.parse_bytes(text)
    except ValueError:
        return None


def apply(settings: Any, limit_rate: "Optional[Union[int, float, str]]", timeout: Optional[float], shared: bool) -> None:
    """Writes the limit, the time-out and the ways into the settings of a load."""
    settings.limit_rate = rate(limit_rate)
    if timeout is not None:
        if not 0 < timeout <= 86_400:
            raise OptionError(f"invalid timeout={timeout!r}: use seconds, such as 30")
        settings.timeout = max(1, int(timeout * 1000))
    chosen = dict(DEFAULTS)
    for part in filter(None, os.environ.get(VARIABLE, "").split(",")):
        key, _, value = part.strip().partition("=")
        if key in ("piece", "window") and (length := size(value)):
            setattr(settings, key, length)
        elif value in CHOICES.get(key, {}):
            chosen[key] = value
        else:
            known = ", ".join(f"{name}={'|'.join(values)}" for name, values in CHOICES.items())
            raise OptionError(f"invalid {VARIABLE}: {part!r}: use {known}, piece=4M, window=64M")
    settings.ways = sum(CHOICES[key][value] for key, value in chosen.items())
    if shared:
        settings.ways |= CACHED
