"""How long the work of each step took, how long it waited for its weights, and how fast the link was."""

from typing import Any, Optional

# Copies that are large enough to tell the link's speed.
_LARGE = 4 << 20


class Watch:
    """The clocks of one pass: before and after each step's wait, and around each copy."""

    def __init__(self, card: Any) -> None:
        self._card = card
        self._start = card.clock()
        self._before: list[Any] = []
        self._after: list[Any] = []
        self._over: Any = None
        self.copies: list[tuple[Any, Any, int]] = []

    def before(self) -> None:
        self._before.append(self._card.clock())

    def after(self) -> None:
        self._after.append(self._card.clock())

    def end(self) -> None:
        self._over = self._card.clock()

    def is_over(self) -> bool:
        return self._over is not None and bool(self._card.is_over(self._over)) and all(self._card.is_over(end) for _, end, _ in self.copies)

    def seconds(self) -> list[float]:
        """The work of each step, up to the next one's wait. What came before the first belongs to it."""
        ends = [*self._before[1:], self._over]
        found = [self._card.seconds(begin, end) for begin, end in zip(self._after, ends)]
        if found:
            found[0] += self._card.seconds(self._start, self._before[0])
        return found

    def waited(self) -> float:
        return float(sum(self._card.seconds(begin, end) for begin, end in zip(self._before, self._after)))

    def whole(self) -> float:
        return float(self._card.seconds(self._start, self._over))

    def speed(self) -> Optional[float]:
        """Bytes a second of large copies; None if there were none."""
        large = [(self._card.seconds(begin, end), nbytes) for begin, end, nbytes in self.copies if nbytes >= _LARGE]
        large = [entry for entry in large if entry[0] > 0]
        return sum(nbytes for _, nbytes in large) / sum(seconds for seconds, _ in large) if large else None
