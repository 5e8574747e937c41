"""Decides when a script has run enough: at its own end, when its steps bring nothing new, or when its time is over.

Later batches may be larger, and an evaluation may come at the end of an epoch. Steps on this card are cheap, so a
script goes on until it ends by itself. One that takes longer is stopped once its last steps were all like earlier ones
(settled), and one whose steps go on to differ when its time is over; the answer then says that more may come.

    a step is like another  <=>  it asked for as many blocks and bytes, and its peak is the same
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

from .together import Together

# The seconds that a script may take after its first steps, if no others were asked for.
SECONDS = 60.0
# The first steps make the optimizer's states, and warm up compiled code.
_FIRST = 3
# After this many steps without anything new a program has settled. It still runs for this share of its time limit, or
# without a limit for this many seconds, because an evaluation may come.
_SETTLED, _SETTLED_SHARE, _SETTLED_SECONDS = 8, 2 / 3, 20.0
# The most steps of a model that Gapless steps itself, while its batches differ.
_MOST = 100
# A program that neither steps nor calls a model is stopped after this many times its seconds of computing.
_FALLBACK = 2
_LOOK = 5.0


class Like(NamedTuple):
    """The figures that two steps have in common if they are alike."""

    blocks: int
    bytes: int
    peak: int


class Enough(BaseException):
    """Ends a script. No handler of the program's own catches it."""


class Pace:
    """`wanted` steps, or, without a number, as many as are useful within `seconds` of computing (None: no limit). With
    `alarms` a program that neither steps nor calls a model is stopped, too."""

    def __init__(
        self,
        wanted: Optional[int],
        seconds: Optional[float],
        clock: Callable[[], float] = time.process_time,
        alarms: bool = False,
        together: Optional[Together] = None,
    ) -> None:
        self._together, self._calls = together, 0
        self._alarms = alarms
        self._wanted, self._seconds, self._clock = wanted, seconds, clock
        self._since: Optional[float] = None
        # The time at which a compiler began its work, which is not the program's time.
        self._compiler: Optional[float] = None
        self._before: Optional[tuple[int, int]] = None
        self.steps: list[Like] = []
        # Shapes of the inputs of the model, of the present step and of the one with the largest peak.
        self._shapes: tuple[int, str] = (0, "")
        self.largest: Optional[dict[str, Any]] = None
        # The reason for which the script was stopped: "steps", "settled", "time"; None if it ended by itself.
        self.stopped: Optional[str] = None

    # ---- what happens ----

    def given(self, inputs: Any) -> None:
        """The outermost module was given these inputs, or, if it has only keywords, a module inside of it was."""
        size, told = _shapes(inputs)
        if size > self._shapes[0]:
            self._shapes = (size, told)

    def called(self) -> None:
        """The outermost module is called. Ends a program that has no more time."""
        self._calls += 1
        if not self.steps and self._since is None:
            self._start()
        self._check_time()

    def stepped(self, stats: "dict[str, int]", peak: int, number: Optional[int] = None) -> None:
        """An optimizer stepped; `stats` are torch's, `peak` is that of the step, and `number` its own count."""
        now = (stats["allocation.all.allocated"], stats["allocated_bytes.all.allocated"])
        before = self._before or (0, 0)
        self._before = now
        self.steps.append(Like(now[0] - before[0], now[1] - before[1], peak))
        if self.largest is None or peak > self.largest["peak"]:
            self.largest = {"step": number or len(self.steps), "peak": peak, "inputs": self._shapes[1]}
        self._shapes = (0, "")
        if len(self.steps) <= _FIRST:
            self._start()

    def steps_next(self, counts: "list[int]") -> None:
        """An optimizer is about to step; `counts` has the steps of each so far. Ends the program if that is enough.

        Work after the last step (averages of weights, an evaluation) counts too, so the end comes before the next step.
        If several optimizers take turns, each gets its steps; one that never does ends it late.
        """
        if self._wanted is not None:
            if counts and (min(counts) >= self._wanted or max(counts) >= 4 * self._wanted):
                self._stop("steps")
            return
        if self.settled and self._elapsed() > (_SETTLED_SECONDS if self._seconds is None else _SETTLED_SHARE * self._seconds):
            self._enough("settled")
        self._check_time()

    def numbers(self, measured: "Callable[[int], tuple[dict[str, int], int]]") -> "Iterator[int]":
        """The numbers of the steps of a model that Gapless steps itself: those that are wanted, or as many as it takes
        until two are alike. `measured` has torch's statistics and the peak of a step."""
        while self._wanted is None or len(self.steps) < self._wanted:
            if self._wanted is None and len(self.steps) >= _FIRST:
                if self.steps[-1] == self.steps[-2]:
                    return
                if len(self.steps) >= _MOST or (self._seconds is not None and self._elapsed() > self._seconds):
                    break
            number = len(self.steps)
            yield number
            self.stepped(*measured(number))
        self.stopped = "batches" if self.varies else None

    # ---- what is known of it ----

    @property
    def settled(self) -> bool:
        """True if the last steps brought nothing that earlier ones had not."""
        if len(self.steps) < _FIRST + _SETTLED:
            return False
        return set(self.steps[-_SETTLED:]) <= set(self.steps[1:-_SETTLED])

    @property
    def varies(self) -> bool:
        """True if peaks of the steps differ, apart from the first one's."""
        return len({step.peak for step in self.steps[1:]}) > 1

    @property
    def spread(self) -> float:
        """How far the peaks of the steps lie apart, as a share of the largest."""
        peaks = [step.peak for step in self.steps[1:]] or [1]
        return 1 - min(peaks) / max(max(peaks), 1)

    @property
    def json(self) -> "dict[str, Any]":
        return {"stopped": self.stopped, "settled": self.settled, "varies": self.varies, "spread": self.spread, "largest": self.largest}

    # ---- time ----

    def _start(self) -> None:
        """Time counts from here on: imports, the first steps and compilers are not the program's pace."""
        self._since = self._clock()
        if self._alarms and self._wanted is None and self._seconds is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, self._alarm):
                signal.signal(signal.SIGALRM, self._alarm)
                # Repeats, because an exception in a destructor is lost.
                signal.setitimer(signal.ITIMER_REAL, _LOOK, _LOOK)

    def compiles(self, begins: bool) -> None:
        """A compiler begins its work, or ends it."""
        if begins:
            self._compiler = self._compiler or self._clock()
        elif self._compiler is not None:
            if self._since is not None:
                self._since += self._clock() - max(self._since, self._compiler)
            self._compiler = None

    def end(self) -> None:
        """Stops the alarms, because the program is over."""
        if signal.getsignal(signal.SIGALRM) == self._alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _alarm(self, *_: Any) -> None:
        if self._seconds is not None and self._elapsed() > _FALLBACK * self._seconds:
            self._stop("time")

    def _elapsed(self) -> float:
        """Seconds of computing since the first steps, without a compiler's."""
        if self._since is None:
            return 0.0
        return max(0.0, (self._clock() if self._compiler is None else self._compiler) - self._since)

    def _check_time(self) -> None:
        if self._wanted is None and self._seconds is not None and self._elapsed() > self._seconds:
            self._enough("time")
        why = self._together.why(*self._done) if self._together is not None and self._wanted is None else None
        if why is not None:
            self._stop(why)

    @property
    def _done(self) -> "tuple[str, int]":
        """The count that ranks which work with each other have in common."""
        return ("steps", len(self.steps)) if self.steps else ("calls", self._calls)

    def _enough(self, why: str) -> None:
        """Stops now, or at the step at which all ranks do."""
        if self._together is None:
            self._stop(why)
        elif not self._together.proposed():
            self._together.propose(*self._done, why)

    def stop_with(self, why: str) -> None:
        """Another rank was stopped, and this one waits for it."""
        self._stop(why)

    def _stop(self, why: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.stopped = why
            raise Enough


def _shapes(inputs: Any) -> "tuple[int, str]":
    """Elements and shapes of the tensors among a module's inputs."""
    import torch

    found = [word for word in inputs if isinstance(word, torch.Tensor)]
    return sum(tensor.numel() for tensor in found), ", ".join(str(list(tensor.shape)) for tensor in found[:4])
