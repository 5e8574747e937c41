"""The one allocator of this process: enable() and what can be asked of it afterwards.

State is set once, under a lock, and only after torch accepted the allocator: a failed enable() leaves torch as it was.
"""

import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Dict, Optional, Union

from . import _options, _tools
from ._errors import GaplessError, GaplessWarning

if TYPE_CHECKING:
    from ._library import Library

_lock = threading.Lock()
_library: Optional["Library"] = None
_allocator: Any = None
_chosen: Dict[str, Any] = {}
_overlay = False
_reason: Optional[str] = "gapless.enable() was not called"


def enable(**options: Any) -> bool:
    """Makes Gapless the allocator of torch's GPU memory. Call it before CUDA starts; a second call is fine.

    Options are those of `gapless run --help`: reserve, limit, largest_page, slack, windows, overlay, pages, stats, record,
    record_stacks, record_limit; each can also be set as an
    environment variable (GAPLESS_RESERVE=60GiB), over which the keyword wins.

    True: it is on. False: this machine or this torch cannot, a warning said so, disable_reason() tells why, and torch's own allocator
    is in place. GaplessError: it was called wrongly (CUDA has started, an unknown option), and the message says what to do.
    """
    global _library, _allocator, _chosen, _overlay, _reason
    with _lock:
        chosen = _options.collect(options)
        if _library is not None:
            ignored = sorted(name for name in options if name in chosen and _chosen.get(name) != chosen[name])
            if ignored:
                message = f"gapless is on already: {', '.join(ignored)} cannot be changed any more and has no effect"
                warnings.warn(message, GaplessWarning, stacklevel=2)
            return True

        # Only now: a process that never enables it loads neither torch nor ctypes for it.
        from . import _library as native
        from . import _torch

        torch = _torch.import_torch()
        reason = _torch.why_not(torch)
        if reason is None:
            library = native.Library(native.path())
            reason = library.enable(_options.text_for_library(chosen))
            if reason is None and "record" in chosen:
                from . import _record

                _record.start(torch, library, chosen)
        if reason is not None:
            _reason = reason
            warnings.warn(f"gapless is off, torch's own allocator is in place: {reason}", GaplessWarning, stacklevel=2)
            return False
        _allocator = _torch.plug(torch, library)
        _library, _chosen, _reason = library, chosen, None
        _overlay = chosen.get("overlay", True) and library.overlay(torch.__version__, torch.version.git_version or "")
        if not _overlay:
            why_not = library.last_error()
            _tools.replace_questions(torch, library)
            _tools.lead_accelerator(torch)
            if chosen.get("overlay", True):
                warnings.warn(f"{why_not}, so these tools are off: {_tools.OFF}", GaplessWarning, stacklevel=2)
        if chosen.get("stats"):
            from . import _stats

            _stats.print_at_exit(library)
        return True


def enabled() -> bool:
    """Whether Gapless is torch's allocator."""
    return _library is not None


def disable_reason() -> Optional[str]:
    """Why Gapless is not torch's allocator; None where it is."""
    return _reason


def stats(device: Any = None) -> Dict[str, Any]:
    """What torch.cuda.memory_stats() counts, with dotted keys, and what only Gapless counts, below "gapless."."""
    return _tools.flat(_tools.nested(_on().stats(_index(device))))


def trim(device: Any = None) -> int:
    """Gives memory that nobody uses back to the device; how many bytes that were."""
    return _on().trim(_index(device))


def reserve(size: Union[int, str], device: Any = None) -> None:
    """Takes memory from the device ahead of use, such as "60GiB": the first steps then take none."""
    try:
        count = _options.parse_bytes(size)
    except ValueError as error:
        raise _options.OptionError(f"{size!r} is not {error}") from None
    _on().reserve(_index(device), count)


def snapshot(path: str) -> None:
    """Writes a snapshot that torch's memory viewer and `gapless report` open."""
    library = _on()
    if _overlay:
        from . import _torch

        _torch.import_torch().cuda.memory._dump_snapshot(path)
    elif library.has("gapless_snapshot"):
        if library.optional("gapless_snapshot", str(path).encode()) != 0:
            raise GaplessError(f"{path} was not written: {library.last_error()}")
    else:
        raise GaplessError("a snapshot needs a build of torch that this version of gapless knows: see gapless.enable's warning")


def step() -> None:
    """Marks in the recording that a training step begins here, and that the one before has ended.

    Without a recording it does nothing, so that it can stay in a program.
    """
    record = sys.modules.get(f"{__package__}._record")
    if record is not None:
        record.step()


def _on() -> "Library":
    if _library is None:
        raise GaplessError(f"gapless is off: {_reason}")
    return _library


def _index(device: Any) -> int:
    from . import _torch

    torch = _torch.import_torch()
    torch.cuda.init()
    return torch.cuda._utils._get_device_index(device, optional=True)
