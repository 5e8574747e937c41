"""Gapless: PyTorch's GPU memory without gaps.

    import gapless
    gapless.enable()          # before CUDA starts; or run the program with `gapless run -- python train.py`

Without a GPU:
    report, diff, check       where the memory of a recorded run went, what changed, and whether it keeps to budgets
    estimate                  how much memory a model takes on a card that you do not have
    name_modules              names layers in recordings of GPU memory, torch's own too
    plan                      an offset for each buffer, with the lowest peak

On a GPU, after enable():
    stats, snapshot, trim     what the allocator holds; give unused memory back
    reserve, step             take memory ahead; mark where a training step begins
    available, on_pressure    what this process can still get; be called before a request fails
    budget, tenant            limits for a part of the program, and for processes that share a card
    fit_into                  a budget for a training step: what to keep, and what to compute again
    offload, pin_memory       saved activations in host memory; fast copies to the GPU
    stream                    a model that is larger than its budget: weights come when they are needed
    region, sleep, wake       give a model's memory back while it waits, and get it again at the same addresses
    share, attach             one copy of weights for several processes
    elastic                   tensors that grow without moving

Modules to import: gapless.weights (load and save), gapless.cupy, gapless.numba, gapless.ray, gapless.host (numpy and
torch on the CPU), gapless.integrations (transformers, Lightning, trackers).

Importing this package has no effect: it imports no torch, loads no library and reads no environment variable before
enable(). The pages in docs/ describe each part.
"""

from ._asleep import AsleepError, guard_sleeping
from ._available import available
from ._budget import budget, tenant
from ._elastic import BlockTable, Elastic, ElasticPool, elastic, elastic_pool
from ._errors import GaplessError, GaplessWarning, OptionError
from ._estimate.answer import Estimate
from ._estimate.api import estimate
from ._fit_into import fit_into
from ._modules import ModuleNames, name_modules
from ._offload import offload
from ._others import Suspended, resume_others, suspend_others
from ._paths import include_dir, library_dir
from ._pin import pin_batch, pin_memory
from ._plan import plan
from ._regions import Moved, Region, is_asleep, kept_bytes, move_to_region, no_region, prepare_host, region, regions, retain, sleep, switch, wake
from ._report import Check, Device, Diff, Finding, Holder, Report, check, diff, report
from ._session import disable_reason, enable, enabled, on_pressure, reserve, snapshot, stats, step, trim
from ._share import Attached, attach, share, unshare
from ._stream.api import Stream, stream
from ._version import __version__ as __version__
from ._version import version

__all__ = [
    "AsleepError",
    "Attached",
    "BlockTable",
    "Check",
    "Device",
    "Diff",
    "Elastic",
    "ElasticPool",
    "Estimate",
    "Finding",
    "GaplessError",
    "GaplessWarning",
    "Holder",
    "ModuleNames",
    "Moved",
    "OptionError",
    "Pressure",
    "Region",
    "Report",
    "Stream",
    "Suspended",
    "attach",
    "available",
    "budget",
    "check",
    "diff",
    "disable_reason",
    "elastic",
    "elastic_pool",
    "enable",
    "enabled",
    "estimate",
    "fit_into",
    "guard_sleeping",
    "include_dir",
    "is_asleep",
    "library_dir",
    "kept_bytes",
    "move_to_region",
    "name_modules",
    "no_region",
    "offload",
    "on_pressure",
    "pin_batch",
    "pin_memory",
    "plan",
    "prepare_host",
    "region",
    "regions",
    "report",
    "reserve",
    "resume_others",
    "retain",
    "share",
    "sleep",
    "snapshot",
    "stats",
    "step",
    "stream",
    "suspend_others",
    "switch",
    "tenant",
    "trim",
    "unshare",
    "version",
    "wake",
]


def __getattr__(name: str) -> object:
    # Imported at its first use, because it needs ctypes.
    if name == "Pressure":
        from ._pressure import Pressure

        return Pressure
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
