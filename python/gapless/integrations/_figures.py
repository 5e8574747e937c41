"""The present memory of a device, as numbers with names."""

import sys
from typing import Any, Literal

from .. import _session
from .._errors import GaplessError

_SCALES = {"bytes": 1, "MiB": 1 << 20, "GiB": 1 << 30}

# The name in the answer, and the key in torch's statistics. Gapless counts under the same keys.
_SIZES = (
    ("allocated", "allocated_bytes.all.current"),
    ("reserved", "reserved_bytes.all.current"),
    ("peak_allocated", "allocated_bytes.all.peak"),
    ("peak_reserved", "reserved_bytes.all.peak"),
)
_COUNTS = (("retries", "num_alloc_retries"), ("ooms", "num_ooms"))
# Limits that only Gapless has; absent if they are not set.
_LIMITS = (("budget", "gapless.budget.limit"), ("share", "gapless.tenant.limit"))


def figures(device: Any = None, *, prefix: str = "memory/", unit: Literal["bytes", "MiB", "GiB"] = "GiB") -> dict[str, float]:
    """The memory of a device of this process, by default the current one: allocated, reserved, their peaks since the
    program last reset them, fragmentation (1 - peak allocated / peak reserved), retries, out-of-memory errors, and the
    budget if Gapless holds the process to one.

    The figures come from Gapless if it is on, else from torch.cuda.memory_stats(). They are empty before CUDA starts.
    """
    if unit not in _SCALES:
        raise GaplessError(f"unknown unit {unit!r}: use one of {', '.join(_SCALES)}")
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    on = _session.enabled()
    stats = _session.stats(device) if on else torch.cuda.memory_stats(device)
    return named(stats, prefix, _SCALES[unit])


def named(stats: dict[str, Any], prefix: str, scale: int) -> dict[str, float]:
    """The figures out of torch's statistics, or Gapless's."""
    found: dict[str, float] = {name: stats.get(key, 0) / scale for name, key in _SIZES}
    reserved = found["peak_reserved"]
    found["fragmentation"] = 1 - found["peak_allocated"] / reserved if reserved else 0.0
    found.update({name: float(stats.get(key, 0)) for name, key in _COUNTS})
    found.update({name: stats[key] / scale for name, key in _LIMITS if stats.get(key)})
    return {prefix + name: value for name, value in found.items()}
