"""From records of passes to a plan: the chain that plan.choose() gets, and when it is asked again."""

from typing import Any, Optional

from .items import Item
from .order import Key, Record
from .plan import Chain, Link, Plan, Use, bound, choose, simulate
from .timing import Watch

# Assumed until copies were timed: PCIe 5 x16 as one H200 has it.
_SPEED = 50e9
# A plan is changed for one that is faster by this factor.
_WORTH = 1.02
# A pass is timed so often until its plan is final; later now and then, for stats().
_TIMED = 3
_EVERY = 16


class Planner:
    def __init__(self, budget: int) -> None:
        self.items: list[Item] = []
        self.budget = budget
        # Items that always stay.
        self._fixed: frozenset[int] = frozenset()
        self.all_fit = False
        self.speed: Optional[float] = None
        self.plan_now: Optional[Plan] = None
        # Of the last pass that was timed: seconds as a whole, of its work and waits, and the least that it could take.
        self.last: dict[str, float] = {}
        # Items that find no room in any case: the card reads them from the host.
        self.in_place: frozenset[int] = frozenset()
        self._chosen_for: Any = None
        self._waiting: list[tuple[Record, Watch, list[bool]]] = []

    def forget(self, items: list[Item], fixed: frozenset[int]) -> None:
        """There are other items, or other sizes: what was chosen for the old ones counts no more."""
        self.items, self._fixed = items, fixed
        self.all_fit = sum(item.nbytes for item in items if item.held) <= self.budget
        self.plan_now = self._chosen_for = None
        self._waiting.clear()

    @property
    def link(self) -> Link:
        return Link(self.speed or _SPEED)

    def wants_times(self, record: Optional[Record]) -> bool:
        """The first pass is a warm-up, and its times are no one's."""
        return record is not None and not self._waiting and (record.times < _TIMED or record.passes % _EVERY == 0)

    def timed(self, record: Record, watch: Watch, sure: list[bool]) -> None:
        """A pass was timed; `sure` says which of its steps the record has."""
        self._waiting.append((record, watch, sure))

    def learn(self, card: Any) -> None:
        """Reads the clocks of passes that are over by now."""
        still = []
        for record, watch, sure in self._waiting:
            if not watch.is_over():
                still.append((record, watch, sure))
                continue
            seconds: list[float] = []
            for found, is_sure in zip(watch.seconds(), sure):
                # The work of a step that the record lacks counts as that of the one before.
                if is_sure or not seconds:
                    seconds.append(found)
                else:
                    seconds[-1] += found
            if len(seconds) != len(record.steps):
                continue
            record.seconds = seconds
            record.times += 1
            self.speed = watch.speed() or self.speed
            chain = self.chain([record])
            self.last = {
                "pass_seconds": watch.whole(),
                "compute_seconds": sum(seconds),
                "waited_seconds": watch.waited(),
                "least_seconds": bound(chain, self.budget - self._fixed_bytes(), self.link),
                "pass_bytes": float(chain.used()),
            }
        self._waiting = still

    def plan(self, records: list[tuple[Key, Record]]) -> Optional[Plan]:
        """The plan for passes that come by turns, if it is not the one that is followed already."""
        if not records:
            return None
        asked = tuple((key, id(record), record.times) for key, record in records)
        if asked == self._chosen_for:
            return None
        self._chosen_for = asked
        chain, before = self.chain([record for _, record in records]), self.plan_now
        # Two of the steps that come when they are called.
        budget = max(0, self.budget - self._fixed_bytes() - 2 * max(record.widest_other for _, record in records))
        is_rough = any(record.times == 0 for _, record in records)
        found = choose(chain, budget, self.link, is_rough=is_rough)
        self.in_place = frozenset()
        while found.expected is None and chain.uses and not self.all_fit:
            # No choice has room for each step: of what is needed for the longest time, the largest is left on the host.
            worst = max(chain.uses, key=lambda use: (use.last > use.first, chain.sizes[use.item])).item
            self.in_place |= {worst}
            chain = chain._replace(uses=[use for use in chain.uses if use.item != worst])
            found = choose(chain, budget, self.link, is_rough=is_rough)
        if self.all_fit:
            found = Plan(frozenset(item.number for item in self.items), found.expected)
        elif before is not None and found.expected is not None:
            # An exchange costs the link too: a plan that is nearly as good stays.
            as_before = simulate(chain, before.resident, budget, self.link)
            if as_before is not None and as_before.seconds <= _WORTH * found.expected.seconds:
                return None
        self.plan_now = found
        return found

    def _fixed_bytes(self) -> int:
        return sum(self.items[number].nbytes for number in self._fixed)

    def chain(self, records: list[Record]) -> Chain:
        """The passes of some records, one after the other. What is always on the card is left out."""
        seconds: list[float] = []
        uses: list[Use] = []
        latest: dict[int, int] = {}
        for record in records:
            begin = len(seconds)
            seconds.extend(record.seconds if record.seconds is not None else (self._guess(step.items) for step in record.steps))
            for at, step in enumerate(record.steps):
                for item in step.items:
                    if item.number in self._fixed or not item.held:
                        continue
                    before = latest.get(item.number)
                    last = begin + max(step.last, at)
                    if before is not None and uses[before].last >= begin + at - 1:
                        uses[before] = uses[before]._replace(last=max(uses[before].last, last))
                    else:
                        latest[item.number] = len(uses)
                        uses.append(Use(item.number, begin + at, last))
        return Chain([item.nbytes for item in self.items], seconds, uses)

    def _guess(self, items: Any) -> float:
        """Work of a step that was not timed: as if the link could just keep up."""
        return float(sum(item.nbytes for item in items)) / self.link.speed
