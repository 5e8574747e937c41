"""torch_memory_saver's interface over Gapless's regions.

    from gapless.integrations.torch_memory_saver import torch_memory_saver      # instead of its own
    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True): ...

Programs that import the package themselves (SGLang, verl, slime) need no change: `install()` puts regions below the
package's own object, and registers the hook mode "gapless" where the package lets one be registered.

Beneath is memory of Gapless: it sleeps in large pieces, keeps its addresses, and takes CUDA graphs along in every mode.
"""

import contextlib
import importlib
import os
import re
from collections.abc import Iterator
from typing import Any, Optional

from .. import _regions, _session
from .._errors import GaplessError

_PREFIX = "saver"


def _region_name(tag: str, kind: str) -> str:
    """The region of a tag and of what is kept for it. Tags may have any letters; names of regions may not."""
    plain = tag if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", tag) else "x" + tag.encode().hex()[:39]
    return f"{_PREFIX}/{kind}/{plain}"


class Saver:
    """What torch_memory_saver's object does.

    Three of its settings are accepted and change nothing: retain_cpu_backup, as host memory stays pinned for the next
    pause here, while the bytes are dropped by a resume; memory_margin_bytes; and cpu_backup_backend, as a backup is
    always pinned. Scopes are of the process, where the package's are of a thread.
    """

    def __init__(self) -> None:
        self.hook_mode = "gapless"
        self.retain_cpu_backup = False
        self.memory_margin_bytes = 0
        # What the open scopes are, oldest first: the tag, what is kept and where it was asked for,
        # or None where a scope is in no region.
        self._open: list[Optional[tuple[str, str, str]]] = []

    @property
    def enabled(self) -> bool:
        return True

    @contextlib.contextmanager
    def region(
        self, tag: str = "default", enable_cpu_backup: bool = False, enable_disk_backup: bool = False, cpu_backup_backend: Optional[str] = None
    ) -> Iterator[None]:
        """What is allocated in it is paused and resumed with its tag. Without a backup a pause loses its bytes."""
        if enable_cpu_backup and enable_disk_backup:
            raise ValueError("enable_cpu_backup and enable_disk_backup exclude each other: choose one")
        if cpu_backup_backend is not None and not enable_cpu_backup:
            raise ValueError("cpu_backup_backend needs enable_cpu_backup=True")
        keep = "host" if enable_cpu_backup else "disk" if enable_disk_backup else "discard"
        with _regions.region(_region_name(tag, keep), keep=keep), self._scope((tag, keep, cpu_backup_backend or "pinned")):
            yield

    @contextlib.contextmanager
    def _scope(self, what: Optional[tuple[str, str, str]]) -> Iterator[None]:
        self._open.append(what)
        try:
            yield
        finally:
            self._open.pop()

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: Optional[str] = None,
    ) -> Iterator[None]:
        """torch.cuda.graph, whose memory is paused with its tag."""
        from .. import _torch

        torch = _torch.import_torch()
        with self.region(tag, enable_cpu_backup, cpu_backup_backend=cpu_backup_backend):
            with torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode):
                yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """What is allocated in it belongs to no region. What is free at its end goes back to the card."""
        with _regions.no_region(), self._scope(None):
            yield
        # Pinned host memory stays: the next pause needs it.
        _session._on().trim(_session._index(None))

    def _named(self, tag: Optional[str]) -> list[_regions.Region]:
        def is_wanted(name: str) -> bool:
            return name.startswith(_PREFIX + "/") if tag is None else name in {_region_name(tag, kind) for kind in ("host", "disk", "discard")}

        return [found for found in _regions.regions() if is_wanted(found.name)]

    def pause(self, tag: Optional[str] = None) -> None:
        """The memory of a tag, or of all tags, goes back to the card. One that is paused already stays so."""
        for found in self._named(tag):
            if found.live and not found.asleep:
                _regions.sleep(found.name, guard=False)

    def resume(self, tag: Optional[str] = None) -> None:
        """The memory of a tag, or of all tags, is there again, at the same addresses."""
        for found in self._named(tag):
            if found.asleep:
                _regions.wake(found.name)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The bytes of a paused tensor, as a tensor on the host of their own; None where none are kept."""
        return _regions.kept_bytes(x)

    def configure_subprocess(self) -> Any:
        """Nothing needs to be preloaded."""
        return contextlib.nullcontext()


torch_memory_saver = Saver()
_lasting: list[Any] = []


class _Below:
    """What the package's own object calls, as far as it differs from `Saver`."""

    _is_xpu = False

    def __init__(self, saver: Saver) -> None:
        self._saver = saver
        self._binary_wrapper = self
        self.cdll = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._saver, name)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        return self._saver.get_cpu_backup(x, zero_copy)

    def set_memory_margin_bytes(self, value: int) -> None:
        self._saver.memory_margin_bytes = value

    def _current(self) -> tuple[str, str, str]:
        return (self._saver._open[-1] if self._saver._open else None) or ("default", "", "pinned")

    def tms_get_interesting_region(self) -> bool:
        return bool(self._saver._open and self._saver._open[-1])

    def tms_get_enable_cpu_backup(self) -> bool:
        return self._current()[1] == "host"

    def tms_get_enable_disk_backup(self) -> bool:
        return self._current()[1] == "disk"

    def tms_get_current_tag(self) -> bytes:
        return self._current()[0].encode()

    def tms_get_cpu_backup_backend(self) -> bytes:
        return self._current()[2].encode()

    def tms_set_disk_backup_dir(self, path: bytes) -> None:
        os.environ["GAPLESS_SLEEP_DIR"] = path.decode()

    def tms_get_retain_cpu_backup(self) -> bool:
        return self._saver.retain_cpu_backup

    def tms_set_retain_cpu_backup(self, value: bool) -> None:
        self._saver.retain_cpu_backup = value


def install() -> None:
    """Puts regions below the object of the torch_memory_saver package: call it before the package is first used."""
    try:
        package = importlib.import_module("torch_memory_saver")
    except ImportError:
        raise GaplessError("torch_memory_saver is not installed: import torch_memory_saver from this module instead") from None
    below = _Below(torch_memory_saver)
    register = getattr(package, "register_hook_mode", None)
    if register is not None:
        register("gapless", lambda *_, **__: below)
    theirs = package.torch_memory_saver
    used = getattr(theirs, "_impl", None)
    if used is not None and not isinstance(used, _Below):
        raise GaplessError("torch_memory_saver was used already: call gapless.integrations.torch_memory_saver.install() before its first region")
    theirs._impl = below
    # As its preloaded library does: everything that is allocated from the start on belongs to the default tag.
    if os.environ.get("TMS_INIT_ENABLE") == "1" and not torch_memory_saver._open:
        scope = torch_memory_saver.region(enable_cpu_backup=os.environ.get("TMS_INIT_ENABLE_CPU_BACKUP") == "1")
        scope.__enter__()
        # Held for as long as the process lives: a scope that is collected would end.
        _lasting.append(scope)
