"""The one allocator of this process: enable() and what can be asked of it afterwards.

State is set once, under a lock, and only after torch accepted the allocator: a failed enable() leaves torch as it was.
The library can also start without torch (start_alone), for CuPy and Numba: its options are set once, for all of them.
"""

import atexit
import operator
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any, Callable, Literal, NoReturn, Optional, Union

from . import _forks, _offload, _options, _tools
from ._errors import GaplessError, GaplessWarning, OptionError

if TYPE_CHECKING:
    from ._library import Library
    from ._pressure import Handle, Pressure

# Values that options take: bytes as a number or "60GiB", a file, yes or no as a flag or in the words of the variables.
Size = Union[int, str]
Path = Union[str, "os.PathLike[str]"]
Switch = Union[bool, int, str]

# Reentrant: a finalizer or a signal handler may run in the same thread while it holds the lock.
_lock = _forks.lock()
# The library as torch's allocator, and the library with its options set, which others may use.
_library: Optional["Library"] = None
_started: Optional["Library"] = None
_started_with: dict[str, Any] = {}
_allocator: Any = None
_chosen: dict[str, Any] = {}
_overlay = False
_reason: Optional[str] = "gapless.enable() was not called"


def enable(
    *,
    reserve: Optional[Size] = None,
    limit: Optional[Size] = None,
    process_limit: Optional[Size] = None,
    tenant: Optional[str] = None,
    stream_weights: Optional[Size] = None,
    train_in: Optional[Size] = None,
    largest_page: Optional[Size] = None,
    slack: Union[int, str, None] = None,
    windows: Union[int, str, None] = None,
    graph_windows: Optional[Switch] = None,
    lending: Optional[Switch] = None,
    run_ahead: Union[int, str, None] = None,
    plans: Optional[Switch] = None,
    record: Optional[Path] = None,
    record_stacks: Optional[Literal["python", "off"]] = None,
    record_limit: Optional[Size] = None,
    oom_dir: Optional[Path] = None,
    check: Optional[Switch] = None,
    check_bytes: Optional[Size] = None,
    overlay: Optional[Switch] = None,
    visible: Optional[Switch] = None,
    stats: Optional[Switch] = None,
    **unknown: NoReturn,
) -> bool:
    """Makes Gapless the allocator of torch's GPU memory. Call it before CUDA starts; a second call is fine.

    Each option can also be set as an environment variable (GAPLESS_RESERVE=60GiB) and by `gapless run`. A keyword wins
    over its variable; None means that the keyword was not given. Sizes are numbers of bytes or text such as "60GiB".

    reserve        take this much of each device's memory when CUDA starts (0)
    limit          the pool holds at most this much of each device's memory
    process_limit  the process holds at most this much of each device's memory, context and libraries included
    tenant         share each device with other processes of this user: a:30GiB, a:60% or a:30GiB:borrow
    stream_weights keep at most this much of weights on each device: models that the program moves there stream
    train_in       train the program's models within this much of each device's memory: saved tensors are dropped and
                   made again
    stats          print one line about memory to standard error when a process ends (0)
    record         write every allocation and free to this .gtrace file
    record_stacks  which stacks to record for each request (off)
    record_limit   the most disk space for the recording; the newest events are kept
    oom_dir        where a failed request writes the state of the heap; off: nowhere (.)
    visible        show this process to gapless top and gapless metrics of the same user (1)
    largest_page   the largest physical page to take, 2MiB to 512MiB (32MiB)
    slack          how many thousandths more than the peak to hold before free pages are mapped again; at least 16MiB,
                   and 4MiB for each stream (10)
    windows        how many address windows stay mapped for later requests of their size (1024)
    graph_windows  give pools of graphs and MemPools windows too (1)
    run_ahead      if freed tensors wait for other streams (record_stream) with more than this, wait for the oldest
                   instead of taking new memory
    lending        let a stream use memory that another stream freed, once no work uses it any more (1)
    plans          serve repeating steps from a plan (1)
    check          fill freed memory, and verify it before it is used again; slow (0)
    check_bytes    with check: fill only this much of each block, half at each end
    overlay        answer torch's own memory tools natively where the build of torch is known (1)

    Returns True if Gapless is torch's allocator now. If this machine or this torch is not supported, it warns, returns
    False, and leaves torch's own allocator in place; disable_reason() gives the reason. If the call is wrong (CUDA has
    started, an unknown option), it raises GaplessError, and the message says what to do.
    """
    global _library, _allocator, _chosen, _overlay, _reason
    given = dict(locals())
    # A type checker refuses a keyword that does not exist; at run time collect() does, and names the nearest.
    given.update(given.pop("unknown"))
    options = {name: value for name, value in given.items() if value is not None or name not in _options.OPTIONS}
    with _lock:
        chosen = _options.collect(options)
        if _library is not None:
            ignored = sorted(name for name in map(_options.current, options) if name in chosen and _chosen.get(name) != chosen[name])
            if ignored:
                message = f"gapless is on already: {', '.join(ignored)} cannot be changed any more and has no effect"
                warnings.warn(message, GaplessWarning, stacklevel=2)
            return True

        # Only now: a process that never enables it loads neither torch nor ctypes for it.
        from . import _library as native
        from . import _overlay as overlay_module
        from . import _pressure, _torch, _trace

        torch = _torch.import_torch()
        reason = _torch.why_not(torch)
        if reason is None:
            library = _started or native.Library(native.path())
            if _torch.is_rocm(torch):
                from . import _hip

                reason = _hip.why_not(torch, library)
            reason = reason or _start(library, chosen)
        if reason is not None:
            _reason = reason
            warnings.warn(f"gapless is off, torch's own allocator is in place: {reason}", GaplessWarning, stacklevel=2)
            return False
        if _library is not None:
            # A signal handler has enabled it meanwhile.
            return True
        overlay_module.have_settings_read(torch)
        _allocator = _torch.plug(torch, library)
        _library, _chosen, _reason = library, chosen, None
        _pressure.attach(library)
        _trace.attach(library)
        if "torch_memory_saver" in os.environ.get("LD_PRELOAD", ""):
            message = (
                "torch_memory_saver is preloaded and replaces cudaMalloc, which gapless does not call: its pause() would release nothing. "
                "Call gapless.integrations.torch_memory_saver.install(), and do not preload it"
            )
            warnings.warn(message, GaplessWarning, stacklevel=2)
        wanted = chosen.get("overlay", True)
        why_not = overlay_module.install(torch, library) if wanted else None
        _overlay = wanted and why_not is None
        if _overlay:
            from . import _received

            _received.mark(torch)
        else:
            _tools.replace_questions(torch, library)
            _tools.lead_accelerator(torch)
            if wanted:
                warnings.warn(f"{why_not}, so these tools are off: {_tools.OFF}", GaplessWarning, stacklevel=2)
        if chosen.get("plans", True) or "record" in chosen:
            from . import _steps

            _steps.watch(torch, library)
        if "record" in chosen:
            from . import _modules

            _modules.name_all(torch, library)
        if "stream_weights" in chosen:
            from ._stream import auto

            auto.install(torch, chosen["stream_weights"])
        if "train_in" in chosen:
            from ._fit_into import auto as training

            training.install(torch, chosen["train_in"])
        if chosen.get("check"):
            from . import _check

            _check.print_at_exit(library)
        if chosen.get("stats"):
            from . import _stats

            _stats.print_at_exit(library)
        return True


def start_alone() -> "Library":
    """The library, for libraries other than torch. If enable() was not called before, it starts with the options of
    the environment. enable() may follow."""
    with _lock:
        if _started is None:
            from . import _library as native
            from . import _pressure, _stats

            chosen = _options.collect({})
            library = native.Library(native.path())
            reason = _start(library, chosen)
            if reason is not None:
                raise GaplessError(f"gapless cannot serve memory here: {reason}")
            _pressure.attach(library)
            if chosen.get("stats"):
                _stats.print_at_exit(library, alone=True)
        # _start() has set it.
        assert _started is not None
        return _started


def _start(library: "Library", chosen: dict[str, Any]) -> Optional[str]:
    """Sets the options of the library, once. None, or why the allocator cannot run here."""
    global _started, _started_with
    # Options that concern only torch can still be chosen later.
    of_all = {name: value for name, value in chosen.items() if _options.OPTIONS[name].scope != "torch"}
    if _started is not None:
        if of_all != _started_with:
            raise GaplessError(
                "gapless has started already, with other options: call gapless.enable() before CuPy or Numba allocate, "
                "or set the options as GAPLESS_* variables"
            )
        return None
    reason = library.enable(_options.text_for_library(chosen))
    if reason is not None:
        return reason
    if library.has("gapless_python_ends"):
        # Registered first, so that it runs last: our other functions at exit may still need Python's lines.
        atexit.register(_end, library, os.getpid())
    if "record" in chosen:
        from . import _record

        _record.start(library, chosen)
    if "oom_dir" in chosen and library.has("gapless_oom_folder"):
        library.optional("gapless_oom_folder", os.fsencode(chosen["oom_dir"]))
    if "tenant" in chosen or "process_limit" in chosen:
        from . import _budget

        if "tenant" in chosen:
            _budget.become(library, chosen["tenant"])
        _budget.end_with_process(library)
    _started, _started_with = library, of_all
    return None


def enabled() -> bool:
    """Whether Gapless is torch's allocator."""
    return _library is not None


def disable_reason() -> Optional[str]:
    """Why Gapless is not torch's allocator; None if it is."""
    return _reason


def stats(device: Any = None) -> dict[str, Any]:
    """Returns what torch.cuda.memory_stats() counts, with dotted keys, and Gapless's own figures, below "gapless."."""
    at = _index(device)
    found = _tools.flat(_tools.nested(_on().stats(at)))
    found.update(_offload.stats_of(at))
    return found


def trim(device: Any = None) -> int:
    """Gives unused memory back to the device, and unused host memory that offload pinned back to the system. Returns
    the bytes of the device."""
    _offload.trim()
    return _on().trim(_index(device))


def reserve(size: Union[int, str], device: Any = None) -> None:
    """Takes memory from the device ahead of use, such as "60GiB", so that the first steps need not take any."""
    try:
        count = _options.parse_bytes(size)
    except ValueError as error:
        raise OptionError(f"{size!r} is not {error}") from None
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
        if _library is None:
            raise GaplessError("a snapshot is torch's, which does not use gapless here: set GAPLESS_RECORD=run.gtrace to record a run without torch")
        raise GaplessError("a snapshot needs a build of torch that this version of gapless knows: see gapless.enable's warning")


def step() -> None:
    """Marks that a training step begins here, and that the one before has ended. Recordings and plans of repeating
    steps use it.

    Each optimizer's step is such a mark too. If Gapless is off, the call has no effect, so it can stay in a program.
    """
    steps = sys.modules.get(f"{__package__}._steps")
    if steps is None and "libgapless_malloc" in os.environ.get("LD_PRELOAD", ""):
        # Only the host's allocator is there.
        from . import _steps as steps
    if steps is not None:
        steps.step()


def on_pressure(fn: Callable[["Pressure"], Any]) -> "Handle":
    """Calls fn before a request for GPU memory fails, with a Pressure: what was requested, and what is missing.

    fn may free memory. It returns the bytes that it freed, or True; False or 0 if it could free nothing; None if it
    does not know, and then Gapless measures. Gapless calls the handlers in the order of their registration, and tries
    the request again after each one that helped. An exception in fn becomes a warning, and does not replace the
    torch.OutOfMemoryError. Gapless calls no handler for a request inside of fn, during a graph capture, or inside of
    torch.cuda.use_mem_pool.

    Returns a Handle. Its method remove(), or the end of its with block, ends the calls. It can be used as a decorator.
    """
    from . import _pressure

    return _pressure.on_pressure(fn)


def _end(library: "Library", owner: int) -> None:
    """Keeps native threads out of Python: a thread that asks for its lock while Python ends hangs, or crashes."""
    if os.getpid() == owner:
        library.optional("gapless_python_ends")


def _on() -> "Library":
    library = _library or _started
    if library is None:
        raise GaplessError(f"gapless is off: {_reason}")
    return library


def _index(device: Any) -> int:
    if _library is None:
        # Without torch a device is a number.
        return 0 if device is None else operator.index(device)
    from . import _torch

    torch = _torch.import_torch()
    torch.cuda.init()
    return int(torch.cuda._utils._get_device_index(device, optional=True))
