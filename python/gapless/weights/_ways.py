"""How files are read: a limit, time-outs, and the options weights_*, which choose among ways that give the same bytes.

The options are variables such as GAPLESS_WEIGHTS_CACHED=map. They are for measurements on a machine: the defaults are
the best ways on the machines that were measured.
"""

import os
import warnings
from collections.abc import Mapping
from typing import Any, Optional, Union

from .. import _options
from .._errors import GaplessWarning, OptionError

# A list such as "cached=map,window=64M" of the same words.
OLD = "GAPLESS_WEIGHTS"
# Bits of `ways` in crates/gapless-loader/src/shared.rs.
MAPPED, HUGE, KEPT, CACHED, THREADS = 1, 2, 4, 8, 16
_BITS = {
    "weights_cached": {"copy": 0, "map": MAPPED},
    "weights_ring": {"huge": HUGE, "driver": 0},
    "weights_keep": {"yes": KEPT, "no": 0},
    "weights_direct": {"uring": 0, "threads": THREADS, "no": CACHED},
}


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
    chosen = _chosen(os.environ)
    for name, attribute in (("weights_piece", "piece"), ("weights_window", "window")):
        if name in chosen:
            setattr(settings, attribute, chosen[name])
    settings.ways = sum(bits[chosen.get(name, _options.WEIGHTS[name].default)] for name, bits in _BITS.items())
    if shared:
        settings.ways |= CACHED


def _chosen(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options weights_* that are set. The old list is read too, and the variables win over it."""
    given: list[tuple[str, str, str]] = []
    if environ.get(OLD):
        warnings.warn(f"{OLD} is the old form of {OLD}_CACHED and the like: use these", GaplessWarning, stacklevel=4)
        for part in filter(None, environ[OLD].split(",")):
            key, _, value = part.strip().partition("=")
            given.append((f"invalid {OLD}: {part!r}", f"weights_{key}", value))
    for variable, text in environ.items():
        if variable.startswith(OLD + "_"):
            given.append((f"invalid {variable}={text!r}", variable[len(_options.PREFIX) :].lower(), text))
    chosen = {}
    for shown, name, value in given:
        if name not in _options.WEIGHTS:
            raise OptionError(f"{shown}: there are {', '.join(row.variable for row in _options.WEIGHTS.values())}")
        try:
            chosen[name] = _options.WEIGHTS[name].parse(value)
        except ValueError as error:
            raise OptionError(f"{shown}: not {error}") from None
    return chosen
