"""Tries in a forked child, before CUDA starts, whether the library's table fits this torch.

The library has compared torch's table with the row of this release. Here torch's own callers are asked: first with a
table whose every function throws its place, so that a call shows which place the caller was compiled for; then with
one that answers statistics and a snapshot with known numbers, so that the dictionaries show whether each field arrives
where it belongs. A wrong guess can crash the child; its parent then stays on the plain hooks.

It takes 36 ms of processor time (torch 2.11 and 2.15), 24 of them in the child. Nothing here starts CUDA.
"""

from typing import Any, Callable, Optional

from . import _trial
from ._library import Library

_POOL = (0, 1)


def _calls(torch: Any) -> list[tuple[str, Callable[[], Any]]]:
    """Functions of the table, each with a call of torch's that ends in it and does not start CUDA."""
    c = torch._C
    listed: list[tuple[str, str, tuple[Any, ...]]] = [
        ("emptyCache", "_cuda_emptyCache", ()),
        ("getDeviceStats", "_cuda_memoryStats", (0,)),
        ("resetAccumulatedStats", "_cuda_resetAccumulatedMemoryStats", (0,)),
        ("resetPeakStats", "_cuda_resetPeakMemoryStats", (0,)),
        ("raw_delete", "_cuda_cudaCachingAllocator_raw_delete", (0,)),
        ("raw_alloc_with_stream", "_cuda_cudaCachingAllocator_raw_alloc", (1, 0)),
        ("isEnabled", "_cuda_cudaCachingAllocator_is_enabled", ()),
        ("getMemoryFraction", "_cuda_getMemoryFraction", (0,)),
        ("setMemoryFraction", "_cuda_setMemoryFraction", (1.0, 0)),
        ("snapshot", "_cuda_memorySnapshot", (None,)),
        ("releasePool", "_cuda_releasePool", (0, _POOL)),
        ("checkPoolLiveAllocations", "_cuda_checkPoolLiveAllocations", (0, _POOL, set())),
        ("isHistoryEnabled", "_cuda_isHistoryEnabled", ()),
        ("supportsUserMetadata", "_cuda_memoryMetadataSupported", ()),
        ("setUserMetadata", "_cuda_setMemoryMetadata", ("",)),
        ("getUserMetadata", "_cuda_getMemoryMetadata", ()),
        ("annotateMemory", "_cuda_annotateMemory", (4096, "")),
        ("getCheckpointState", "_cuda_getCheckpointState", (0, _POOL)),
        ("name", "_cuda_getAllocatorBackend", ()),
    ]

    def call(function: str, arguments: tuple[Any, ...]) -> Callable[[], Any]:
        return lambda: getattr(c, function)(*arguments)

    return [(name, call(function, arguments)) for name, function, arguments in listed if hasattr(c, function)]


def why_not(torch: Any, library: Library) -> Optional[str]:
    """None if this torch is what the library takes it for, else the reason."""
    build = (torch.__version__.encode(), (torch.version.git_version or "").encode())
    if library.optional("gapless_overlay_check", *build) != 0:
        return library.last_error()

    def work() -> str:
        return _try_places(torch, library, build) or _try_numbers(torch, library, build) or _trial.FITS

    return _trial.why_not("torch's table", work)


def _try_places(torch: Any, library: Library, build: tuple[bytes, bytes]) -> Optional[str]:
    if library.optional("gapless_overlay_try", *build, 0) != 0:
        return library.last_error()
    for name, call in _calls(torch):
        place = library.optional("gapless_overlay_word", *build, name.encode())
        if place < 0:
            continue
        try:
            call()
            found = "nothing was thrown"
        except Exception as error:
            found = str(error)
        if f"gapless probe {place}." not in found:
            return f"torch calls another place of its table than {place} for {name} ({found.splitlines()[0][:200]})"
    return None


_AMOUNTS = ("allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes")
_MORE_AMOUNTS = ("active_bytes", "inactive_split_bytes", "requested_bytes")
_CLASSES = ("all", "small_pool", "large_pool")
_PARTS = ("current", "peak", "allocated", "freed")


def _try_numbers(torch: Any, library: Library, build: tuple[bytes, bytes]) -> Optional[str]:
    if library.optional("gapless_overlay_try", *build, 1) != 0:
        return library.last_error()
    stats = torch._C._cuda_memoryStats(0)
    snapshot = torch._C._cuda_memorySnapshot(None)
    for what, wanted, found in (("statistics", known_stats(), stats), ("a snapshot", known_snapshot(), snapshot)):
        wrong = _difference(wanted, found)
        if wrong is not None:
            return f"torch reads {what} in another way: {wrong}"
    return None


def known_stats() -> dict[str, Any]:
    """The statistics that the library answers with in a trial: numbers in the order of the fields."""

    def stat(first: int) -> dict[str, int]:
        return {part: first + at for at, part in enumerate(_PARTS)}

    def array(first: int) -> dict[str, dict[str, int]]:
        return {name: stat(first + 4 * at) for at, name in enumerate(_CLASSES)}

    known: dict[str, Any] = {name: array(1000 + 12 * at) for at, name in enumerate(_AMOUNTS + _MORE_AMOUNTS)}
    known.update(num_alloc_retries=1108, num_ooms=1109, oversize_allocations=stat(1110), oversize_segments=stat(1114))
    known.update(num_sync_all_streams=1118, num_device_alloc=1119, num_device_free=1120)
    known.update(num_oom_rejections=1121, max_split_size=1122)
    known["reserved_bytes_by_private_pools"] = {(7, 8): array(2000), (9, 10): array(3000)}
    return known


def known_snapshot() -> dict[str, Any]:
    """The snapshot that the library answers with in a trial."""
    blocks = [
        {"address": 5001, "size": 5010, "requested_size": 5009, "state": "active_allocated"},
        {"address": 10011, "size": 5020, "requested_size": 5019, "state": "inactive"},
    ]
    segment = {
        "device": 0,
        "address": 5001,
        "total_size": 5002,
        "requested_size": 5003,
        "allocated_size": 5004,
        "active_size": 5005,
        "stream": 5006,
        "segment_type": "large",
        "segment_pool_id": (13, 14),
        "is_expandable": True,
        "blocks": blocks,
    }
    entry = {
        "action": "free_completed",
        "addr": 4001,
        "size": 4002,
        "stream": 4003,
        "time_us": 4004,
        "compile_context": "a compiled region",
        "user_metadata": "metadata of a program",
        "pool_id": (11, 12),
    }
    annotation = {"device": 0, "time_us": 4005, "name": "step", "stage": "START"}
    return {"segments": [segment], "device_traces": [[entry]], "external_annotations": [annotation], "allocator_settings": {}}


def _difference(wanted: Any, found: Any, where: str = "") -> Optional[str]:
    """The first thing in `found` that is not as `wanted`; keys that a release does not have are no difference."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        if where == "" and len(found.keys() & wanted.keys()) < 4:
            return f"it has {sorted(map(str, found))}"
        pairs = [(key, wanted[key], found[key]) for key in wanted if key in found]
    elif isinstance(wanted, list) and isinstance(found, (list, tuple)):
        if len(wanted) != len(found):
            return f"{where} has {len(found)} items instead of {len(wanted)}"
        pairs = list(zip(range(len(wanted)), wanted, found))
    else:
        # A pool's id is a tuple here and a list there.
        same = list(wanted) == list(found) if isinstance(wanted, tuple) and isinstance(found, (list, tuple)) else wanted == found
        return None if same else f"{where} is {found!r} instead of {wanted!r}"
    for key, one, other in pairs:
        wrong = _difference(one, other, f"{where}.{key}" if where else str(key))
        if wrong is not None:
            return wrong
    return None
