"""torch's own memory tools, answered by the library: tried first, then put in place.

The library replaces functions in the table of its own allocator object. It does so only in builds of torch that it
knows exactly, and after a trial (`_selftest.py`). What fails leaves the plain hooks, and a reason.
"""

import functools
import os
import re
from typing import Any, Optional

from . import _selftest
from ._library import Library

EXPANDABLE = "expandable_segments:True"
# torch refuses to read its own backend again while another allocator is in its place.
BACKEND = re.compile(r"(^|,)\s*backend\s*:\s*(native|cudaMallocAsync)\s*(?=,|$)")


def have_settings_read(torch: Any) -> None:
    """torch reads the backend in its settings when it first needs them, and fails if another allocator is in place by
    then. So it reads them before."""
    setters = [name for name in _SETTERS if hasattr(torch._C, name)]
    settings = _settings(torch)
    if setters and "backend" in settings:
        getattr(torch._C, setters[0])(settings)
    for name in setters:
        setattr(torch._C, name, _without_backend(getattr(torch._C, name), settings))


# Setters of torch's settings: of newer releases, and of older ones.
_SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")


def _without_backend(set_all: Any, before: str) -> Any:
    """A setter that drops torch's own backend: a program may name it later, and torch would compare it with Gapless."""
    named = BACKEND.findall(before)
    own = re.compile(BACKEND.pattern.replace("native|cudaMallocAsync", named[-1][1] if named else "native"))

    @functools.wraps(set_all)
    def set_rest(settings: str) -> None:
        set_all(own.sub("", settings).lstrip(", ") if isinstance(settings, str) else settings)

    return set_rest


def _settings(torch: Any) -> str:
    """Those of torch's allocators: newer releases tell, older ones had them from the environment."""
    get = getattr(torch._C, "_accelerator_getAllocatorSettings", None)
    return get() if get is not None else os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def install(torch: Any, library: Library) -> Optional[str]:
    """None if torch's tools are answered natively from now on, else why not."""
    if library.has("gapless_overlay_try"):
        reason = _selftest.why_not(torch, library)
        if reason is not None:
            return reason
    if not library.overlay(torch.__version__, torch.version.git_version or ""):
        return library.last_error()
    _keep_heaps_unregistered(torch)
    return None


def _keep_heaps_unregistered(torch: Any) -> None:
    """torch's second NCCL backend (2.14, the default since 2.15) registers all memory of a process, and leaves out
    the default pool only if torch's settings say that its segments are expandable. Those of Gapless are: their memory
    is unmapped while the program runs, which a registration would not survive. The other settings stay. A program
    that sets others later would undo it: settings that are not named go back to their defaults."""
    set_all = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if set_all is None or not hasattr(torch._C, "_cuda_memoryMetadataSupported"):
        return

    def set_kept(settings: str) -> None:
        if isinstance(settings, str):
            settings = BACKEND.sub("", settings).lstrip(",")
            # If a setting is named twice, the last one counts.
            if not settings.replace(" ", "").endswith(EXPANDABLE):
                settings = f"{settings},{EXPANDABLE}" if settings else EXPANDABLE
        set_all(settings)

    set_kept(_settings(torch))
    torch._C._accelerator_setAllocatorSettings = set_kept
