"""Memory in use and the time of operators while a step is recorded: on a CUDA device from torch's allocator and events,
elsewhere from the storages that the recorder knows and the clock.
"""

import time
from typing import Any

import torch

from .roofline import Roofline

# The device spins before an operator for about this many cycles (0.2 ms), so that the operator is queued before it
# starts. Its time is then the device's own, not the time to launch it.
_SPIN = 400_000
_ROUND = 512
# Set by `gapless estimate`, whose card takes no time.
is_modelled = False


class CudaMeter:
    """Bytes and times of one device. It resets torch's peak statistics."""

    sees_all = True

    def __init__(self, device: Any) -> None:
        self._device = device.index if device.index is not None else torch.cuda.current_device()
        self._pairs: list[tuple[Any, Any]] = []
        self._empty: list[tuple[Any, Any]] = [self._pair() for _ in range(8)]
        for start, end in self._empty:
            torch.cuda._sleep(_SPIN)
            start.record()
            end.record()

    def _pair(self) -> tuple[Any, Any]:
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def look(self) -> tuple[int, int]:
        """Bytes in use, and the most since the last look."""
        stats = torch._C._cuda_memoryStats(self._device)["allocated_bytes"]["all"]
        torch._C._cuda_resetPeakMemoryStats(self._device)
        return int(stats["current"]), int(stats["peak"])

    def born(self, nbytes: int) -> None:
        pass

    def gone(self, nbytes: int) -> None:
        pass

    def start(self) -> None:
        pair = self._pair()
        self._pairs.append(pair)
        torch.cuda._sleep(_SPIN)
        pair[0].record()

    def stop(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self._pairs[-1][1].record()

    def forget(self) -> None:
        """The last operator does not count."""
        self._pairs.pop()

    def microseconds(self) -> list[float]:
        """Of each operator."""
        torch.cuda.synchronize(self._device)
        nothing = min(start.elapsed_time(end) for start, end in self._empty)
        return [max(0.0, start.elapsed_time(end) - nothing) * 1e3 for start, end in self._pairs]


class ModelledMeter(CudaMeter):
    """Bytes of a card that is only bookkeeping, and times from a model of it."""

    def __init__(self, device: Any) -> None:
        super().__init__(device)
        self._model, self._times = Roofline(device), list[float]()

    def start(self) -> None:
        pass

    def stop(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self._times.append(self._model.microseconds(func, args, kwargs, out))

    def forget(self) -> None:
        self._times.pop()

    def microseconds(self) -> list[float]:
        return self._times


class PlainMeter:
    """Counts the storages that it is told about."""

    sees_all = False

    def __init__(self) -> None:
        self._now = self._most = 0
        self._times: list[float] = []
        self._began = 0.0

    def look(self) -> tuple[int, int]:
        most, self._most = self._most, self._now
        return self._now, most

    def born(self, nbytes: int) -> None:
        self._now += nbytes
        self._most = max(self._most, self._now)

    def gone(self, nbytes: int) -> None:
        self._now -= nbytes

    def start(self) -> None:
        self._began = time.perf_counter()

    def stop(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self._times.append((time.perf_counter() - self._began) * 1e6)

    def forget(self) -> None:
        self._times.pop()

    def microseconds(self) -> list[float]:
        return self._times


def meter_of(device: Any) -> Any:
    if device.type != "cuda":
        return PlainMeter()
    return ModelledMeter(device) if is_modelled else CudaMeter(device)


def rounded(nbytes: int) -> int:
    """As torch's allocator rounds."""
    return -(-nbytes // _ROUND) * _ROUND


class StepClock:
    """How long a step takes, and its first forward: the device, and the program's thread, which launches the work."""

    def __init__(self, device: Any) -> None:
        self._is_cuda = device.type == "cuda"
        self._marks: list[Any] = [self._mark()]
        self._began = time.perf_counter()
        self._thread = 0.0

    def _mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end_forward(self) -> None:
        if len(self._marks) == 1:
            self._thread = (time.perf_counter() - self._began) * 1e6
            self._marks.append(self._mark())

    def end(self) -> dict[str, float]:
        """Microseconds of the step, its forward on the device, and its forward in the thread."""
        self.end_forward()
        last = self._mark()
        if self._is_cuda:
            last.synchronize()
        forward = self._between(self._marks[0], self._marks[1])
        # Without a device the thread does the work: nothing waits.
        return {"step": self._between(self._marks[0], last), "forward": forward, "thread": self._thread if self._is_cuda else 0.0}

    def _between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end) * 1e3) if self._is_cuda else float((end - begin) * 1e6)
