"""torch's own memory tools in Python, for builds of torch whose tables the library does not know.

On the plain hooks torch refuses every question about memory. This file answers those that the library's statistics can
answer: it replaces the functions of torch.cuda.memory (and their other names in torch.cuda) that ask torch's C++ side.
The others, such as memory_allocated or memory_summary, are built on these in torch itself, and work again without being
touched. torch.accelerator's functions, which would silently answer 0, are led to torch.cuda's.

If the library answers natively, only torch.accelerator's functions are replaced.
"""

import functools
import os
import re
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from ._library import Library

# Tools that stay off on the plain hooks, for the one warning.
OFF = (
    "torch.cuda.memory_snapshot, _snapshot, _dump_snapshot and _record_memory_history; the observer of failed requests; MemPool and use_mem_pool; "
    "cudagraph trees of torch.compile; sharing CUDA tensors between processes; cudnn.benchmark; NCCL since torch 2.15. "
    "To have them, update gapless, or install a release of torch that it knows"
)

_AMOUNTS = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_POOLS = ("all", "small_pool", "large_pool")
_PARTS = ("current", "peak", "allocated", "freed")
# Keys that reset_accumulated_memory_stats sets back to 0.
_TOTALS = (".allocated", ".freed", "num_alloc_retries", "num_ooms")
_COUNTERS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size")


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Statistics as torch nests them, with every key that torch has; keys that the library does not count are 0."""
    tree: dict[str, Any] = {name: {pool: dict.fromkeys(_PARTS, 0) for pool in _POOLS} for name in _AMOUNTS}
    tree.update({name: dict.fromkeys(_PARTS, 0) for name in ("oversize_allocations", "oversize_segments")})
    tree.update(dict.fromkeys(_COUNTERS, 0))
    for key, value in flat.items():
        *branches, leaf = key.split(".")
        at = tree
        for branch in branches:
            below = at.get(branch)
            at[branch] = at = below if isinstance(below, dict) else {}
        at[leaf] = value
    return tree


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The opposite of nested: dotted keys."""
    found = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


def replace_questions(torch: Any, library: "Library") -> None:
    """The functions of torch.cuda that would raise on the plain hooks."""
    memory = torch.cuda.memory
    index = functools.partial(torch.cuda._utils._get_device_index, optional=True)
    fractions: dict[int, float] = {}
    set_natively = memory.set_per_process_memory_fraction

    # Totals at the program's last reset. The library counts on, so that other readers keep their figures.
    earlier: dict[int, dict[str, int]] = {}

    def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
        if not torch.cuda.is_initialized():
            return {}
        stats = flat(library.stats(index(device)))
        for key, before in earlier.get(index(device), {}).items():
            stats[key] = stats.get(key, before) - before
        return nested(stats)

    def reset_peak_memory_stats(device: Any = None) -> None:
        library.optional("gapless_reset_peaks", index(device))

    def reset_accumulated_memory_stats(device: Any = None) -> None:
        torch.cuda.init()
        stats = flat(library.stats(index(device)))
        earlier[index(device)] = {key: value for key, value in stats.items() if key.endswith(_TOTALS)}

    def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
        set_natively(fraction, device)
        fractions[index(device)] = float(fraction)

    def get_per_process_memory_fraction(device: Any = None) -> float:
        torch.cuda._lazy_init()
        return fractions.get(index(device), _fraction_of_environment())

    for function in (
        memory_stats_as_nested_dict,
        reset_peak_memory_stats,
        reset_accumulated_memory_stats,
        set_per_process_memory_fraction,
        get_per_process_memory_fraction,
    ):
        _replace(function, memory, torch.cuda)


def _fraction_of_environment() -> float:
    """The fraction that the library begins with: the last per_process_memory_fraction of torch's settings."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    found = re.findall(r"(?:^|,)per_process_memory_fraction:([0-9.]+)(?=,|$)", re.sub(r"\s", "", settings))
    return float(found[-1]) if found else 1.0


def lead_accelerator(torch: Any) -> None:
    """torch.accelerator asks an allocator that is no longer in use: its questions go to torch.cuda instead."""
    accelerator = getattr(torch, "accelerator", None)
    module = getattr(accelerator, "memory", None)
    if module is None:
        return
    cuda = torch.cuda

    def empty_cache() -> None:
        cuda.empty_cache()

    def memory_stats(device_index: Any = None, /) -> dict[str, Any]:
        found: dict[str, Any] = cuda.memory_stats(device_index)
        return found

    def reset_peak_memory_stats(device_index: Any = None, /) -> None:
        cuda.reset_peak_memory_stats(device_index)

    def reset_accumulated_memory_stats(device_index: Any = None, /) -> None:
        cuda.reset_accumulated_memory_stats(device_index)

    def get_memory_info(device_index: Any = None, /) -> tuple[int, int]:
        free, total = cuda.mem_get_info(device_index)
        return free, total

    for function in (empty_cache, memory_stats, reset_peak_memory_stats, reset_accumulated_memory_stats, get_memory_info):
        _replace(function, module, accelerator)


def _replace(function: Callable[..., Any], *modules: Any) -> None:
    """Replaces the modules' function of the same name, and makes `function` look like it."""
    name = function.__name__
    original = getattr(modules[0], name, None)
    if original is None:
        return
    functools.update_wrapper(function, original)
    for module in modules:
        if getattr(module, name, None) is original:
            setattr(module, name, function)
