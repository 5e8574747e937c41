"""The bytes of weights on the card, to the byte: each storage counts from its allocation until its memory is free.

A storage that the runner has let go of may live on: a module returned a view of its weight, or autograd saved one. It
counts until it is gone.
"""

from typing import Any, Callable

from .._errors import GaplessError


class Account:
    def __init__(self, budget: int, weak: Callable[[Any], Any]) -> None:
        self.budget, self._weak = budget, weak
        self._held: dict[int, tuple[Any, int]] = {}
        self._escaped: list[tuple[Any, int]] = []
        self._now = self._later = 0
        self.peak = 0
        # Called after each change, by tests.
        self.watch: Callable[[Account], None] = lambda account: None

    @property
    def used(self) -> int:
        return self._now + self._later

    @property
    def escaped(self) -> int:
        """Bytes that were let go of and are still in use."""
        return self._later

    def has_room(self, nbytes: int) -> bool:
        if self.used + nbytes > self.budget and self._escaped:
            self.look()
        return self.used + nbytes <= self.budget

    def add(self, number: int, storage: Any, nbytes: int) -> None:
        if self.used + nbytes > self.budget:
            raise GaplessError(f"{nbytes} bytes of weights would exceed the budget: {self.used} of {self.budget} are in use; please report it")
        self._held[number] = (self._weak(storage), nbytes)
        self._now += nbytes
        self.peak = max(self.peak, self.used)
        self.watch(self)

    def remove(self, number: int) -> None:
        """The runner has let go of a storage."""
        weak, nbytes = self._held.pop(number)
        self._now -= nbytes
        if not weak.expired():
            self._escaped.append((weak, nbytes))
            self._later += nbytes
        self.watch(self)

    def rebuild(self, held: dict[int, tuple[Any, int]]) -> None:
        """Counts anew after an interrupt: these are held, and whatever else was is let go of."""
        gone = [entry for number, entry in self._held.items() if number not in held]
        self._held = {number: (self._weak(storage), nbytes) for number, (storage, nbytes) in held.items()}
        self._now = sum(nbytes for _, nbytes in self._held.values())
        self._escaped.extend(gone)
        self.look()

    def look(self) -> None:
        """Forgets the storages that are gone by now."""
        self._escaped = [entry for entry in self._escaped if not entry[0].expired()]
        self._later = sum(nbytes for _, nbytes in self._escaped)
