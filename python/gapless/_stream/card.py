"""A card as a stream of weights needs it: memory, copies beside the work, and the card's view of pinned memory.

Device memory is allocated on the stream that will use it, so freeing it waits for nothing. The copy's stream waits for
the work that is queued there now, which used the memory before; the stream of the work waits for the copy. Pinned
memory has the same address on the card: a tensor of the card over it is right for every kernel, at the link's speed.
"""

import ctypes
from typing import Any

from .._errors import GaplessError
from .._library import Library

# cudaEvent_t of torch, with times.
_TIMED = {"enable_timing": True}


class Pinned:
    """Pinned memory as the card sees it: torch keeps this object as long as a tensor of the card is over it."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.__cuda_array_interface__ = {
            "data": (host.data_ptr(), False),
            "shape": (host.numel(),),
            "typestr": "|u1",
            "strides": None,
            "version": 3,
            "stream": None,
        }


class Card:
    """One CUDA device."""

    def __init__(self, torch: Any, library: Library, index: int) -> None:
        for name in ("gapless_host_alloc", "gapless_pinned_free"):
            if not library.has(name):
                raise GaplessError(f"this build of the library has no {name}, which stream needs: update gapless")
        self.torch, self._library = torch, library
        self.device = torch.device("cuda", index)
        self.out_of_memory: type[BaseException] = torch.OutOfMemoryError
        self._in = torch.cuda.Stream(self.device)
        self._out = torch.cuda.Stream(self.device)
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            self._copy_in, self._copy_out = driver.cuMemcpyHtoDAsync_v2, driver.cuMemcpyDtoHAsync_v2
        except (OSError, AttributeError) as error:
            raise GaplessError(f"weights are streamed by NVIDIA's driver, and it cannot be loaded: {error}") from None
        self._copy_in.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        self._copy_out.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
        library.reserve(index, 0)

    # ---- host memory ----

    def host(self, nbytes: int) -> Any:
        """Pinned bytes, as a tensor of the CPU; they go back to the pool with the last tensor over them."""
        from .._pin import pinned_bytes

        self._library.optional("gapless_pinned_look")
        return pinned_bytes(self.torch, self._library, self.device.index, nbytes)

    def view(self, host: Any) -> Any:
        """The card's view of pinned bytes: a storage."""
        with self.torch.cuda.device(self.device):
            return self.torch.as_tensor(Pinned(host), device=self.device).untyped_storage()

    def on_cpu(self, host: Any, held: Any) -> Any:
        """A tensor of an item over its pinned bytes."""
        return self.torch.empty(0, dtype=held.dtype).set_(host.untyped_storage(), held.offset, held.size, held.stride)

    # ---- the card ----

    def weak(self, storage: Any) -> Any:
        from torch.multiprocessing.reductions import StorageWeakRef

        return StorageWeakRef(storage)

    def tensor(self, storage: Any, held: Any) -> Any:
        return self.torch.empty(0, dtype=held.dtype, device=self.device).set_(storage, held.offset, held.size, held.stride)

    def stream(self) -> Any:
        return self.torch.cuda.current_stream(self.device)

    def is_capturing(self) -> bool:
        return bool(self.torch.cuda.is_current_stream_capturing())

    def allocate(self, nbytes: int) -> Any:
        return self.torch.UntypedStorage(nbytes, device=self.device)

    def bring(self, storage: Any, host: Any, after: Any, watch: Any) -> Any:
        """Queues a copy to the card. `after`: a copy from the card that the host's bytes come from."""
        side = self._in
        side.wait_stream(self.stream())
        if after is not None:
            side.wait_event(after)
        begin = self._link_clock() if watch is not None else None
        self._done(self._copy_in(storage.data_ptr(), host.data_ptr(), storage.nbytes(), side.cuda_stream))
        if watch is None:
            return side.record_event()
        end = self._link_clock()
        watch.copies.append((begin, end, storage.nbytes()))
        return end

    def take_back(self, storage: Any, host: Any) -> Any:
        """Queues a copy to the host, after the work that is queued now and before all that follows."""
        side, now = self._out, self.stream()
        side.wait_stream(now)
        self._done(self._copy_out(host.data_ptr(), storage.data_ptr(), storage.nbytes(), side.cuda_stream))
        done = side.record_event()
        now.wait_event(done)
        return done

    def _done(self, code: int) -> None:
        if code:
            raise GaplessError(f"the driver refuses to copy weights (error {code})")

    def gate(self, mark: Any) -> None:
        """Work that is queued from now on waits for a copy."""
        self.stream().wait_event(mark)

    def also_used(self, tensor: Any, stream: Any) -> None:
        """Memory of a tensor is used on a stream that it was not allocated on."""
        tensor.record_stream(stream)

    def settle(self) -> None:
        """Waits for all copies."""
        self._in.synchronize()
        self._out.synchronize()

    # ---- time ----

    def clock(self) -> Any:
        mark = self.torch.cuda.Event(**_TIMED)
        mark.record(self.stream())
        return mark

    def _link_clock(self) -> Any:
        mark = self.torch.cuda.Event(**_TIMED)
        mark.record(self._in)
        return mark

    def is_over(self, mark: Any) -> bool:
        return bool(mark.query())

    def seconds(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1e3
