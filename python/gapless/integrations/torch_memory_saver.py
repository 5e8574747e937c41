"""torch_memory_saver's interface over Gapless's regions.

    from gapless.integrations.torch_memory_saver import torch_memory_saver      # instead of its own
    with torch_memory_saver.region(tag="weights", enable_cpu_backup=True): ...

Programs that import the package themselves (SGLang, verl, slime) need no change: `install()` puts regions below the
package's own object, and registers the hook mode "gapless" if the package can register one.

Beneath is memory of Gapless: it sleeps in large pieces, keeps its addresses, and takes CUDA graphs along in every mode.
"""

import contextlib
import ctypes
import importlib
import os
import re
from collections.abc import Iterator
from typing import Any, Optional

from .. import _regions, _session
from .._errors import GaplessError

_PREFIX = "saver"


def _region_name(tag: str, kind: str) -> str:
    """The region of a tag and a kind of backup. Tags may have any letters; names of regions may not."""
    plain = tag if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", tag) else "x" + tag.encode().hex()[:39]
    return f"{_PREFIX}/{kind}/{plain}"


class Saver:
    """The interface of torch_memory_saver's object.

    memory_margin_bytes is accepted and changes nothing. A backup is always pinned; with cpu_backup_backend="mmap" its
    memory goes back to the host with a resume that does not retain it. Scopes are of the process, while the package's
    are of a thread.
    """

    def __init__(self) -> None:
        self.hook_mode = "gapless"
        self.retain_cpu_backup = os.environ.get("TMS_RETAIN_CPU_BACKUP", "0") in ("1", "true", "True")
        self.memory_margin_bytes = 0
        self._backend = os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND") or "pinned"
        # Regions whose host memory goes back with a resume.
        self._unpinned: set[str] = set()
        # The open scopes, oldest first: the tag, the kind of backup and its backend, or None for a scope outside of all
        # regions.
        self._open: list[Optional[tuple[str, str, str]]] = []

    @property
    def enabled(self) -> bool:
        return True

    @contextlib.contextmanager
    def region(
        self, tag: str = "default", enable_cpu_backup: bool = False, enable_disk_backup: bool = False, cpu_backup_backend: Optional[str] = None
    ) -> Iterator[None]:
        """Memory allocated in it is paused and resumed with its tag. Without a backup a pause loses its bytes."""
        if enable_cpu_backup and enable_disk_backup:
            raise ValueError("enable_cpu_backup and enable_disk_backup exclude each other: choose one")
        if cpu_backup_backend is not None and not enable_cpu_backup:
            raise ValueError("cpu_backup_backend needs enable_cpu_backup=True")
        keep = "host" if enable_cpu_backup else "disk" if enable_disk_backup else "discard"
        backend, name = cpu_backup_backend or self._backend, _region_name(tag, keep)
        (self._unpinned.add if backend == "mmap" else self._unpinned.discard)(name)
        with _regions.region(name, keep=keep), self._scope((tag, keep, backend)):
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
        """Memory that is allocated in it belongs to no region. Memory that is free at its end goes back to the card."""
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
        woken = [found.name for found in self._named(tag) if found.asleep]
        for name in woken:
            _regions.retain(name, self.retain_cpu_backup and name.startswith(_PREFIX + "/host/"))
            _regions.wake(name)
        if not self.retain_cpu_backup and self._unpinned.intersection(woken):
            _session._on().optional("gapless_host_trim")

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The bytes of a paused tensor, or of one whose backup was retained, as a tensor on the host; None if none are
        kept. With zero_copy it is the backup itself, if that lies side by side."""
        return _regions.kept_bytes(x, copy=not zero_copy)

    def set_disk_backup_dir(self, path: str) -> None:
        """Sets the folder of backups on disk: files with names, which are removed when their region is resumed."""
        os.makedirs(path, exist_ok=True)
        _regions.show_files_in(path)

    def _drop(self, tag: str, kind: str) -> None:
        """Drops the host's memory for a tag of which nothing is allocated any more, pinned memory too."""
        for found in _regions.regions():
            if found.name == _region_name(tag, kind):
                if found.live or found.asleep:
                    return
                if _regions.sleeps(found.name):
                    _regions.wake(found.name)
                _regions.drop_kept(found.name)
        _session._on().optional("gapless_host_trim")

    def configure_subprocess(self) -> Any:
        """Nothing needs to be preloaded."""
        return contextlib.nullcontext()


torch_memory_saver = Saver()
_lasting: list[Any] = []


class _Pool:
    """Stands for the memory pool of a tag. When it goes and the tag has no tensors left, the host's memory for the tag
    goes too."""

    def __init__(self, saver: Saver, tag: str, kind: str) -> None:
        self._saver, self._tag, self._kind = saver, tag, kind

    def __del__(self) -> None:
        self._saver._drop(self._tag, self._kind)


class _Pools:
    """The memory pools of the package's object: by tag, backups, backend and card."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    def pop(self, key: tuple[str, bool, bool, str, int]) -> _Pool:
        tag, on_host, on_disk, *_ = key
        return _Pool(self._saver, tag, "host" if on_host else "disk" if on_disk else "discard")


class _Below:
    """The functions that the package's own object calls, as far as they differ from those of `Saver`."""

    _is_xpu = False

    def __init__(self, saver: Saver) -> None:
        self._saver = saver
        self._binary_wrapper = self
        self.cdll = self
        self._mem_pools = _Pools(saver)

    def __getattr__(self, name: str) -> Any:
        if re.match("cuda[A-Z]", name):
            # Functions of CUDA's runtime, which the package's own library is linked with, as torch is.
            return getattr(ctypes.CDLL(None), name)
        return getattr(self._saver, name)

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        return self._saver.get_cpu_backup(x, zero_copy)

    def set_memory_margin_bytes(self, value: int) -> None:
        self._saver.memory_margin_bytes = value

    def _current(self) -> tuple[str, str, str]:
        return (self._saver._open[-1] if self._saver._open else None) or ("default", "", self._saver._backend)

    def _with_region_config(self, tag: str, enable_cpu_backup: bool, cpu_backup_backend: Optional[str] = None, enable_disk_backup: bool = False) -> Any:
        return self._saver.region(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend)

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
        self._saver.set_disk_backup_dir(path.decode())

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
