"""A limit on the GPU memory that a test may use:

    @pytest.mark.gapless_limit("10GiB")
    def test_training_fits(): ...

The test fails if the most that was allocated at once on a device, as torch counts it, exceeds the limit. With
of="reserved" it is the most that was held of the device, caches included. Works on torch's own allocator as on
Gapless; a test that uses no GPU passes.
"""

import sys
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from ._options import parse_bytes
from ._stats import size_text

_COUNTED = {"allocated": "allocated_bytes.all.peak", "reserved": "reserved_bytes.all.peak"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", 'gapless_limit(size, of="allocated"): fail when the GPU memory that the test uses at once exceeds size, such as "10GiB"')


def _limit(marker: pytest.Mark) -> tuple[int, str]:
    """The limit of a marker, and the kind of memory that it counts."""
    of = marker.kwargs.get("of", "allocated")
    unknown = sorted(set(marker.kwargs) - {"of", "size"})
    sizes = [*marker.args, *(marker.kwargs[key] for key in ("size",) if key in marker.kwargs)]
    if unknown or len(sizes) != 1 or of not in _COUNTED:
        raise pytest.UsageError('gapless_limit takes a size, and where needed of="reserved": gapless_limit("10GiB")')
    try:
        return parse_bytes(sizes[0]), of
    except ValueError as error:
        raise pytest.UsageError(f"gapless_limit: {sizes[0]!r} is not {error}") from None


def _devices() -> tuple[Any, Sequence[int]]:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None, []
    return torch.cuda, range(torch.cuda.device_count())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, None]:
    marker = item.get_closest_marker("gapless_limit")
    if marker is None:
        yield
        return
    limit, of = _limit(marker)
    cuda, devices = _devices()
    for device in devices:
        cuda.reset_peak_memory_stats(device)
    outcome = yield
    # A test that failed for another reason keeps that one.
    if outcome.excinfo is not None:
        return
    cuda, devices = _devices()
    for device in devices:
        stats = cuda.memory_stats(device)
        peak = stats.get(_COUNTED[of], 0)
        if peak > limit:
            held = "" if of == "reserved" else f"; {size_text(stats.get(_COUNTED['reserved'], 0))} were reserved"
            outcome.force_exception(
                pytest.fail.Exception(
                    f"gapless_limit: the test had {size_text(peak)} of cuda:{device} {of} at once, {size_text(peak - limit)} above its "
                    f"limit of {size_text(limit)}{held}. `gapless run --record run.gtrace` and `gapless report run.gtrace` show what held it",
                    pytrace=False,
                )
            )
            return
