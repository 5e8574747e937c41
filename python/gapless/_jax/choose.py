"""Which settings make a step fit: each is compiled for the card, and nothing runs.

A setting is a list of words (policies of `jax.checkpoint`, shardings, a scan or none), all of which are compiled, or
one size, whose values are numbers: of those the largest that fits is looked for. A peak is nearly a line over the size,
so a few compilations a combination place the answer. What must be proved is compiled; a size is left out only if the
line has foretold the last peak well and puts this one clearly above the budget.
"""

import itertools
import time
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Optional

from .._errors import GaplessError
from .._estimate.cards import Card
from .ahead import CHOSEN, Compiler, forget
from .answer import in_words
from .work import operations

# How near to a compiled peak the line must have been, and how far above the budget it must put a size that is not
# compiled, as shares: a kernel's step is larger than the first, and the second is twice that.
_TRUSTED, _CLEARLY = 0.0025, 0.005
# Compilations of one combination after which the search halves instead of following a line.
_TRIES = 5


@dataclass
class Choice:
    """One compiled combination. `peak` is of one device; `flops` are XLA's count of one call, 0 if it gave none."""

    settings: "dict[str, Any]"
    peak: int
    arguments: int
    temporaries: int
    flops: float
    seconds: float
    fits: bool
    # The settings of an earlier choice that is the same program.
    same_as: "Optional[dict[str, Any]]" = None
    on_frontier: bool = False
    # The next size, which was not compiled, and the peak at which a line through the others puts it.
    next: "Optional[tuple[int, int]]" = None


@dataclass
class Choices:
    """All that was compiled. `best` has the largest size that fits, and of those the fewest operations."""

    card: Card
    budget: int
    size: "Optional[str]"
    tried: "list[Choice]" = field(default_factory=list)
    seconds: float = 0.0
    unchanged: "list[str]" = field(default_factory=list)
    # Work whose kernels only the card chooses: peaks may be larger.
    chosen_on_the_card: "list[str]" = field(default_factory=list)

    @property
    def best(self) -> "Optional[Choice]":
        return min((choice for choice in self.tried if choice.fits), key=self._rank, default=None)

    @property
    def answers(self) -> "list[Choice]":
        """One choice of each combination of words: the largest that fits, or the smallest that does not."""
        found: dict[str, Choice] = {}
        for choice in self.tried:
            key = str([value for name, value in choice.settings.items() if name != self.size])
            known = found.get(key)
            if known is None or (choice.fits, self.of(choice) * (1 if choice.fits else -1)) > (known.fits, self.of(known) * (1 if known.fits else -1)):
                found[key] = choice
        return list(found.values())

    def of(self, choice: Choice) -> int:
        """The size of a choice; 1 if no size is looked for."""
        return int(choice.settings[self.size]) if self.size else 1

    def _rank(self, choice: Choice) -> "tuple[float, float, int]":
        return -self.of(choice), choice.flops / self.of(choice), choice.peak

    @property
    def text(self) -> str:
        best, answers = self.best, self.answers
        verdict = f"best: {_told(best.settings)}, {in_words(best.peak)}" if best else "nothing that was tried fits"
        lines = [f"{verdict} (budget {in_words(self.budget)} of {self.card.title})"]
        compiled = sum(choice.seconds > 0 for choice in self.tried)
        lines.append(f"  {compiled} compilation{'' if compiled == 1 else 's'} in {self.seconds:.0f} s; * no other that fits beats it, by {self._by()}")
        least = min((choice.flops / self.of(choice) for choice in answers if choice.flops), default=0.0)
        for choice in answers:
            mark = "*" if choice.on_frontier else " "
            more = choice.flops / self.of(choice) / least - 1 if least and choice.flops else 0.0
            work = f"{f'{more:+.1%}' if more >= 0.0005 else 'least':>7} work" if least else ""
            fits = "fits" if choice.fits else "does not fit"
            beyond = f"; {self.size} {choice.next[0]} would take {in_words(choice.next[1])}" if choice.next else ""
            lines.append(f"  {mark} {_told(choice.settings):<40}{in_words(choice.peak):>10} {work}  {fits}{beyond}")
        lines += [f"  note: {sentence}" for sentence in self.unchanged]
        if self.chosen_on_the_card:
            lines.append(f"  note: {' and '.join(self.chosen_on_the_card)}: the card chooses the kernel, whose scratch memory is not in these peaks")
        return "\n".join(lines)

    def _by(self) -> str:
        return f"{self.size} and work per {self.size}" if self.size else "memory and work"

    def __str__(self) -> str:
        return self.text


def choose(make: "Callable[..., Any]", card: Card, budget: int, count: int, dumps: str, settings: "dict[str, Any]") -> Choices:
    """`make(**settings)` gives a function, or what `jax.jit` made of it, and its arguments."""
    started = time.monotonic()
    lists = {name: list(values) for name, values in settings.items()}
    for name, values in lists.items():
        if not values:
            raise GaplessError(f"{name} has no values to choose from")
    sizes = [name for name, values in lists.items() if len(values) > 1 and all(isinstance(value, int) and not isinstance(value, bool) for value in values)]
    if len(sizes) > 1:
        raise GaplessError(f"{' and '.join(sizes)} are numbers: one size is looked for; give the others as text, or fix them")
    size = sizes[0] if sizes else None
    search = _Search(make, Compiler(card, count, dumps), budget, Choices(card, budget, size))
    words = {name: values for name, values in lists.items() if name != size}
    for combination in itertools.product(*words.values()):
        fixed = dict(zip(words, combination))
        if size is None:
            search.compiled(fixed)
        else:
            search.largest(fixed, size, sorted(set(lists[size])))
    search.found.unchanged = _unchanged(search.found, words)
    _mark(search.found)
    search.found.chosen_on_the_card = [name for name in CHOSEN if name in search.chosen]
    search.found.seconds = time.monotonic() - started
    return search.found


class _Search:
    def __init__(self, make: "Callable[..., Any]", compiler: Compiler, budget: int, found: Choices) -> None:
        self.make, self.compiler, self.budget, self.found = make, compiler, budget, found
        # By the text before compilation, and by what XLA made of it.
        self._texts: dict[str, Choice] = {}
        self._made: dict[str, Choice] = {}
        # Of the combination before: the largest value that fitted, and the part of a peak that does not grow with it.
        self._start: Optional[tuple[int, float]] = None
        self.chosen: set[str] = set()

    def compiled(self, settings: "dict[str, Any]") -> Choice:
        for choice in self.found.tried:
            if choice.settings == settings:
                return choice
        try:
            choice = self._compiled(settings)
        except GaplessError:
            raise
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            raise GaplessError(f"{_told(settings)} cannot be compiled: {type(error).__name__}: {first}") from error
        self.found.tried.append(choice)
        return choice

    def _compiled(self, settings: "dict[str, Any]") -> Choice:
        made = self.make(**settings)
        function, arguments = (made[0], made[1:]) if isinstance(made, tuple) else (made, ())
        if not hasattr(function, "trace"):
            import jax

            function = jax.jit(function)
        traced = function.trace(*arguments)
        lowered = traced.lower(lowering_platforms=("cuda",))
        # Equal programs before compilation are equal after it.
        text = lowered.as_text()
        earlier = self._texts.get(text)
        if earlier is not None:
            return replace(earlier, settings=settings, seconds=0.0, same_as=earlier.same_as or earlier.settings, next=None)
        program = self.compiler.compile(lowered, getattr(function, "__name__", "function"))
        peak = program.arguments + program.outputs - program.aliased + program.temporaries
        # Of traced functions the operations are counted here, because XLA counts none for a card that is not there.
        flops = operations(traced.jaxpr) if hasattr(traced, "jaxpr") else program.flops
        same = self._made.get(program.digest) if program.digest else None
        flops = same.flops if same is not None else flops
        earlier_settings = None if same is None else same.settings
        choice = Choice(settings, peak, program.arguments, program.temporaries, flops, program.seconds, peak <= self.budget, earlier_settings)
        self.chosen |= program.chosen
        forget(program)
        self._texts[text] = choice
        if program.digest:
            self._made.setdefault(program.digest, choice)
        return choice

    def largest(self, fixed: "dict[str, Any]", size: str, values: "list[int]") -> None:
        """Finds the largest value that fits. Invariant: up to `values[low]` all fit, from `values[high]` none."""
        low, high = -1, len(values)
        peaks: dict[int, int] = {}
        guess, intercept = 0, None
        if self._start is not None:
            # Another combination of the same step: most of what does not grow with the size is the same.
            guess, intercept = values.index(self._start[0]), self._start[1]
        while low < guess < high:
            value = values[guess]
            line = _line(peaks, value)
            choice = self.compiled({**fixed, size: value})
            if choice.same_as is not None and not peaks and {**choice.same_as, size: 0} != {**choice.settings, size: 0}:
                # The same program under another name has the same answer.
                return
            peaks[value] = choice.peak
            low, high = (guess, high) if choice.fits else (low, guess)
            if low + 1 == high:
                break
            if choice.fits and line is not None and abs(line - choice.peak) <= _TRUSTED * choice.peak:
                beyond = _line(peaks, values[low + 1])
                if beyond is not None and beyond > self.budget * (1 + _CLEARLY):
                    choice.next = (values[low + 1], int(beyond))
                    break
            guess = self._next(values, low, high, peaks, choice.arguments if intercept is None else intercept)
        if low >= 0:
            known = sorted(peaks)[-2:]
            slope = (peaks[known[-1]] - peaks[known[0]]) / (known[-1] - known[0]) if len(known) == 2 else 0.0
            alone = intercept if intercept is not None else 0.0
            self._start = (values[low], peaks[known[-1]] - slope * known[-1] if slope > 0 else alone)

    def _next(self, values: "list[int]", low: int, high: int, peaks: "dict[int, int]", intercept: float) -> int:
        """Where a line through what is known meets the budget; half of what is left if that leads nowhere."""
        if len(peaks) > _TRIES:
            return (low + high) // 2
        if len(peaks) == 1:
            ((value, peak),) = peaks.items()
            reached = value * (self.budget - intercept) / (peak - intercept) if peak > intercept else float(values[-1])
        else:
            a, b = _nearest(peaks, values[low] if low >= 0 else values[0])
            slope = (peaks[b] - peaks[a]) / (b - a)
            if slope <= 0:
                return (low + high) // 2
            reached = b + (self.budget - peaks[b]) / slope
        at = max((i for i in range(max(low, 0), high) if values[i] <= reached), default=low)
        return min(max(at, low + 1), high - 1)


def _nearest(peaks: "dict[int, int]", value: int) -> "tuple[int, int]":
    """The two known sizes between or beside which `value` lies."""
    known = sorted(peaks)
    at = max((i for i, size in enumerate(known) if size <= value), default=0)
    at = min(max(at, 0), len(known) - 2) if at + 1 < len(known) else len(known) - 2
    return known[at], known[at + 1]


def _line(peaks: "dict[int, int]", value: int) -> "Optional[float]":
    """The peak at `value` by the line through the two sizes nearest to it."""
    if len(peaks) < 2:
        return None
    a, b = _nearest(peaks, value)
    return peaks[b] + (peaks[b] - peaks[a]) / (b - a) * (value - b)


def _told(settings: "dict[str, Any]") -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "as it is"


def _unchanged(found: Choices, words: "dict[str, list[Any]]") -> "list[str]":
    """Sentences on values of a setting that were compiled to the program of another value, or that take the same bytes
    as another with the same size and the same other settings."""
    told: dict[tuple[str, str], str] = {}
    for name in words:
        for at, choice in enumerate(found.tried):
            value, before = str(choice.settings[name]), choice.same_as
            if before is not None and before[name] != choice.settings[name]:
                told[name, value] = f"{name} {value} changes nothing: it is the same program as {before[name]}"
            for earlier in found.tried[:at]:
                if choice.same_as is None and earlier.same_as is None and _bytes(choice) == _bytes(earlier):
                    if {**earlier.settings, name: None} == {**choice.settings, name: None}:
                        told.setdefault((name, value), f"{name} {value} saves nothing: it takes the memory of {earlier.settings[name]}, to the byte")
    return [told[key] for key in sorted(told)]


def _bytes(choice: Choice) -> "tuple[int, int, int]":
    return choice.peak, choice.arguments, choice.temporaries


def _mark(found: Choices) -> None:
    """Marks what fits and is not beaten: by no other that has as large a size (without a size: that takes as little
    memory) for no more operations."""

    def costs(choice: Choice) -> "tuple[float, float]":
        return (float(-found.of(choice)) if found.size else float(choice.peak)), choice.flops / found.of(choice)

    fitting = [choice for choice in found.answers if choice.fits and choice.same_as is None]
    for choice in fitting:
        mine = costs(choice)
        others = (costs(other) for other in fitting if other is not choice)
        choice.on_frontier = not any(other[0] <= mine[0] and other[1] <= mine[1] and other != mine for other in others)
