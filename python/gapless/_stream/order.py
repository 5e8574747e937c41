"""The order of use: what a pass did, and where the one under way stands in the order that it is expected to follow.

A pass is a call of a module that no other module of the models is calling. Its record has a step for each call of a
module that uses weights itself, in the order of the calls. Pure: no tensors here.
"""

from collections.abc import Sequence
from typing import Any, Optional

# Steps that are looked at to find where a pass that left the expected order goes on.
_LOOK_AHEAD = 4096


class Step:
    """A call that uses weights. `last` is the last step that began before it ended."""

    __slots__ = ("items", "last", "place")

    def __init__(self, place: int, items: Sequence[Any]) -> None:
        self.place, self.items = place, items
        self.last = -1


class Expected:
    """The expected steps of a pass, and how far the pass and the copies are in it.

    Uses are the items of the steps, in a row. Those before `ahead` were prepared: their copies are on the card or on
    their way, and each adds one to its item's `wanted`.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        self.begin: list[int] = []
        self.uses: list[Any] = []
        for step in steps:
            self.begin.append(len(self.uses))
            self.uses.extend(step.items)
        self.begin.append(len(self.uses))
        # The next step, and the next use that is not prepared.
        self.at = 0
        self.ahead = 0
        # The runner's epoch that `ahead` belongs to.
        self.epoch = -1
        self._by_place: Optional[dict[int, list[int]]] = None

    def find(self, place: int) -> Optional[int]:
        """Where the pass is when `place` is called: the next step, or a later one if some were left out."""
        if self.at < len(self.steps) and self.steps[self.at].place == place:
            return self.at
        if self._by_place is None:
            self._by_place = {}
            for number, step in enumerate(self.steps):
                self._by_place.setdefault(step.place, []).append(number)
        found = next((number for number in self._by_place.get(place, ()) if number >= self.at), None)
        return found if found is not None and found - self.at <= _LOOK_AHEAD else None

    def distance(self, item: Any) -> int:
        """How far ahead an item is used next, in uses; a large number if it is not."""
        for far, use in enumerate(self.uses[self.begin[min(self.at, len(self.steps))] :]):
            if use is item:
                return far
        return 1 << 60


class Record:
    """The last pass of one kind: its steps, and how long the work of each took."""

    __slots__ = ("passes", "seconds", "steps", "times", "widest_other")

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        self.seconds: Optional[list[float]] = None
        # How often a pass was like this, and how often it was timed.
        self.passes = 1
        self.times = 0
        # The most bytes that a step needs at once which not every pass has.
        self.widest_other = 0

    def is_like(self, steps: Sequence[Step]) -> bool:
        return len(steps) == len(self.steps) and all(a.place == b.place and a.items == b.items for a, b in zip(steps, self.steps))


# Steps that at least this share of the last passes had are expected, and copied ahead; others, as routed experts, come
# when they are called, and are kept as long as there is room. A newer pass counts as much as all before it.
_SURE = 0.6

# A kind of pass: the module that is called, and the magnitude of its input.
Key = tuple[int, int]
# Kinds of one module that are kept.
_KINDS = 4
# Passes in which modules come by turns.
_TURNS = 8


class Kinds:
    """The records of passes by their kind, and which of them belong together: they share a plan."""

    def __init__(self) -> None:
        self.records: dict[Key, Record] = {}
        self._recent: list[int] = []
        # How often the places of a kind were called.
        self._shares: dict[Key, dict[int, float]] = {}

    def learn(self, key: Key, steps: Sequence[Step]) -> tuple[Record, list[bool]]:
        """A pass is over: the record of its kind, and which of the steps it has."""
        before, called = self._shares.get(key), {step.place for step in steps}
        shares = self._shares[key] = dict.fromkeys(called, 1.0 if before is None else 0.5)
        for place, share in (before or {}).items():
            if share > 0.01:
                shares[place] = shares.get(place, 0.0) + share / 2
        sure = [shares[step.place] >= _SURE for step in steps]
        kept, widest = [step for step, is_sure in zip(steps, sure) if is_sure], 0
        for step, is_sure in zip(steps, sure):
            if not is_sure:
                widest = max(widest, sum(item.nbytes for item in step.items))
        # Steps are counted among those that are kept.
        number, numbers = -1, []
        for is_sure in sure:
            number += is_sure
            numbers.append(max(number, 0))
        for step in kept:
            step.last = numbers[min(step.last, len(numbers) - 1)]
        record = self.records.get(key)
        if record is None or not record.is_like(kept):
            record = self.add(key, Record(kept))
        else:
            record.passes += 1
            for step, now in zip(record.steps, kept):
                step.last = now.last
        record.widest_other = max(record.widest_other, widest)
        return record, sure

    def add(self, key: Key, record: Record) -> Record:
        """The newest record of a kind; the oldest kind of its module goes if there are many."""
        self.records.pop(key, None)
        self.records[key] = record
        same = [other for other in self.records if other[0] == key[0]]
        if len(same) > _KINDS:
            del self.records[same[0]]
        return record

    def note(self, key: Key) -> None:
        self._recent = [*self._recent[-15:], key[0]]

    def together(self, key: Key) -> list[tuple[Key, Record]]:
        """All kinds of this module, and those of modules that come by turns with it: it came back within the last
        passes, others came in between, and they did so before."""
        modules = {key[0]}
        recent = self._recent
        back = next((at for at in range(len(recent) - 1, -1, -1) if recent[at] == key[0]), None)
        if back is not None and len(recent) - back <= _TURNS:
            between = set(recent[back + 1 :])
            if between <= set(recent[: back + 1]):
                modules |= between
        return sorted(((other, record) for other, record in self.records.items() if other[0] in modules), key=lambda entry: entry[0])
