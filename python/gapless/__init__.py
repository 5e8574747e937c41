"""Gapless: PyTorch's GPU memory without gaps.

    import gapless
    gapless.enable()          # before CUDA starts; or run the program with `gapless run -- python train.py`

Importing this package does nothing: no torch, no library, no environment variable is looked at before enable().
"""

from ._budget import budget, tenant
from ._errors import GaplessError, GaplessWarning, OptionError
from ._estimate.answer import Estimate
from ._estimate.api import estimate
from ._offload import offload
from ._paths import include_dir, library_dir
from ._plan import plan
from ._report import Check, Device, Diff, Finding, Holder, Report, check, diff, report
from ._session import disable_reason, enable, enabled, on_pressure, reserve, snapshot, stats, step, trim
from ._version import __version__ as __version__
from ._version import version

__all__ = [
    "Check",
    "Device",
    "Diff",
    "Estimate",
    "Finding",
    "GaplessError",
    "GaplessWarning",
    "Holder",
    "OptionError",
    "Pressure",
    "Report",
    "budget",
    "check",
    "diff",
    "disable_reason",
    "enable",
    "enabled",
    "estimate",
    "include_dir",
    "library_dir",
    "offload",
    "on_pressure",
    "plan",
    "report",
    "reserve",
    "snapshot",
    "stats",
    "step",
    "tenant",
    "trim",
    "version",
]


def __getattr__(name: str) -> object:
    # Only when it is asked for: it needs ctypes.
    if name == "Pressure":
        from ._pressure import Pressure

        return Pressure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
