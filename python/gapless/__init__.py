"""Gapless: PyTorch's GPU memory without gaps.

    import gapless
    gapless.enable()          # before CUDA starts; or run the program with `gapless run -- python train.py`

Importing this package does nothing: no torch, no library, no environment variable is looked at before enable().
"""

from ._errors import GaplessError, GaplessWarning, OptionError
from ._offload import offload
from ._plan import plan
from ._session import disable_reason, enable, enabled, reserve, snapshot, stats, step, trim
from ._version import __version__, version

__all__ = [
    "GaplessError",
    "GaplessWarning",
    "OptionError",
    "disable_reason",
    "enable",
    "enabled",
    "offload",
    "plan",
    "reserve",
    "snapshot",
    "stats",
    "step",
    "trim",
    "version",
]
