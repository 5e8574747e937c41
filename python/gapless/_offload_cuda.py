"""Copies between one CUDA device and the pinned host pool, with a stream for each direction; and the device's memory in
use.

Memory for a returning tensor is allocated on the stream that will use it. It then lies in that stream's heap, and
freeing it waits for no other stream. The copy's stream waits for the work of that stream, and that stream waits for
the copy. Offload works with torch's own allocator too, but then the most in use between two calls of crest() is not
known.
"""

import ctypes
from typing import Any, Optional

from . import _forks
from ._errors import GaplessError
from ._library import Library
from ._offload_keeper import HostFull, Saved

_HOST = ("live", "allocated", "reserved", "peak", "peak_reserved", "slabs")


class Block:
    """Pinned memory of the pool, as a tensor of bytes."""

    __slots__ = ("address", "tensor")

    def __init__(self, torch: Any, address: int, nbytes: int) -> None:
        self.address = address
        # The buffer does not own the memory: the pool does, and the block is released when no copy uses it.
        self.tensor = torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)


class CudaTransfer:
    """One device. `library` has the host pool; `is_served` says whether it is the device's allocator as well."""

    def __init__(self, torch: Any, library: Library, device: int, is_served: bool, host_limit: Optional[int] = None) -> None:
        for name in ("gapless_host_alloc", "gapless_usage"):
            if not library.has(name):
                raise GaplessError(f"this build of the library has no {name}, which offload needs: update gapless")
        self._torch, self._library, self._device = torch, library, torch.device("cuda", device)
        self._host_limit, self.is_exact = host_limit or 0, is_served
        self.out_of_memory = torch.OutOfMemoryError
        self._streams: Optional[tuple[Any, Any]] = None
        self._figures = (ctypes.c_uint64 * 5)()
        self._stranded = 0
        self._lock = _forks.lock()
        self._uses = getattr(torch._C, "_storage_Use_Count", None)

    # ---- tensors ----

    def takes(self, tensor: Any) -> bool:
        return bool(tensor.device == self._device and not self._torch.cuda.is_current_stream_capturing())

    def weak(self, storage: Any) -> Any:
        from torch.multiprocessing.reductions import StorageWeakRef

        return StorageWeakRef(storage)

    def holders(self, storage: Any) -> int:
        """The number of tensors on a storage; 0 if this torch does not tell."""
        return int(self._uses(storage._cdata)) - 1 if self._uses is not None else 0

    def view(self, returned: Any, saved: Saved) -> Any:
        return self._torch.empty(0, dtype=saved.dtype, device=self._device).set_(returned.untyped_storage(), saved.offset, saved.size, saved.stride)

    def stream(self) -> Any:
        return self._torch.cuda.current_stream(self._device)

    # ---- copies ----

    def host(self, nbytes: int) -> Block:
        address = self._library.optional("gapless_host_alloc", self._device.index, nbytes, self._host_limit)
        if not address:
            raise HostFull(self._library.last_error())
        return Block(self._torch, address, nbytes)

    def release(self, host: Block) -> None:
        self._library.optional("gapless_host_free", host.address)

    def _side(self, at: int) -> Any:
        with self._lock:
            if self._streams is None:
                self._streams = (self._torch.cuda.Stream(self._device), self._torch.cuda.Stream(self._device))
        return self._streams[at]

    def _bytes_of(self, storage: Any) -> Any:
        return self._torch.empty(0, dtype=self._torch.uint8, device=self._device).set_(storage, 0, (storage.nbytes(),), (1,))

    def out(self, tensor: Any, host: Block, stream: Any) -> Any:
        torch, side = self._torch, self._side(0)
        whole = self._bytes_of(tensor.untyped_storage())
        side.wait_stream(stream)
        now = self.stream()
        if now != stream:
            side.wait_stream(now)
        with torch.cuda.stream(side):
            host.tensor.copy_(whole, non_blocking=True)
        return side.record_event()

    def back(self, host: Block, nbytes: int) -> tuple[Any, Any]:
        torch, side, now = self._torch, self._side(1), self.stream()
        # Not torch.empty, which fills memory in deterministic mode: the copy overwrites all of it.
        returned = self._bytes_of(torch.UntypedStorage(nbytes, device=self._device))
        side.wait_stream(now)
        with torch.cuda.stream(side):
            returned.copy_(host.tensor, non_blocking=True)
        return returned, (side.record_event(), now)

    def gate(self, returned: Any, back: Any) -> None:
        """Lets the current stream use `returned` from here on."""
        event, home = back
        now = self.stream()
        now.wait_event(event)
        if now != home:
            returned.record_stream(now)

    def is_done(self, event: Any) -> bool:
        return bool(_event(event).query())

    def wait(self, event: Any) -> None:
        _event(event).synchronize()

    # ---- what is in use ----

    def used(self) -> int:
        """Bytes in use now. They include frees that wait for streams, and free space between blocks, because large
        requests may not fit there."""
        return int(self._look()[0]) + self._stranded

    def crest(self) -> int:
        """The most in use since the last call; with torch's own allocator the bytes in use now."""
        figures = self._look(True)
        self._stranded = int(figures[4])
        return int(figures[3]) + self._stranded

    def _look(self, is_new: bool = False) -> Any:
        """In use, reserved, the limit, the most in use since last time, stranded."""
        if not self.is_exact:
            stats = self._torch._C._cuda_memoryStats(self._device.index)
            used = stats["active_bytes"]["all"]["current"]
            return used, stats["reserved_bytes"]["all"]["current"], 0, used, 0
        found = self._library.optional("gapless_usage", self._device.index, int(is_new), self._figures)
        return self._figures if found == 0 else (0, 0, 0, 0, 0)

    def budget(self, asked: Optional[int]) -> int:
        """The most bytes to hold: as asked for, within the allocator's limit and what the device can give."""
        torch = self._torch
        free, total = torch.cuda.mem_get_info(self._device)
        _, reserved, limit, _, _ = self._look()
        if not self.is_exact:
            limit = int(total * torch.cuda.get_per_process_memory_fraction(self._device))
        return min(amount for amount in (asked, limit, reserved + free) if amount)

    def host_stats(self) -> dict[str, int]:
        return host_stats(self._library)


def _event(of: Any) -> Any:
    """The event of a copy; a copy back has it in a pair with the stream that it is for."""
    return of[0] if isinstance(of, tuple) else of


def host_stats(library: Library) -> dict[str, int]:
    figures = (ctypes.c_uint64 * len(_HOST))()
    library.optional("gapless_host_stats", figures)
    return {f"host_{name}": int(value) for name, value in zip(_HOST, figures)}
