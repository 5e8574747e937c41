"""Chooses the saved tensors of a step that have to leave the device, from an earlier step. Pure: numbers in, a set out.

A step is a row of events: a tensor is saved, or needed again for the first time. Between two events the most that was
in use is known, and so is what was away; their sum is what the step would have used with everything in place. If that
exceeds the capacity, the tensors that were saved first are taken out: they are needed last, so they cover most moments.
"""

import heapq
from typing import Optional


class Profile:
    """The events of one step. Lists `sizes`, `saved`, `free` and `needed` are by tensor, in the order they were saved;
    `before` and `after` by event."""

    __slots__ = ("after", "base", "before", "free", "needed", "saved", "sizes")

    def __init__(self, base: int) -> None:
        # In use when the step began: parameters, optimizer states and everything else that outlives a step.
        self.base = base
        self.sizes: list[int] = []
        self.saved: list[int] = []
        # The event from which saved tensors alone held the memory: before that, moving it frees nothing. None: never.
        self.free: list[Optional[int]] = []
        # The event that needed it again. None: not yet.
        self.needed: list[Optional[int]] = []
        # The most bytes in use between the event before and this one, and the bytes in use right after it, both as if
        # nothing were away.
        self.before: list[int] = []
        self.after: list[int] = []

    def save(self, size: int) -> int:
        """Tensor number; the event is the one that comes next."""
        self.sizes.append(size)
        self.saved.append(len(self.before))
        self.free.append(None)
        self.needed.append(None)
        return len(self.sizes) - 1

    def event(self, crest: int) -> int:
        """An event begins: the most in use since the last one."""
        self.before.append(crest)
        self.after.append(crest)
        return len(self.before) - 1

    def rise(self, event: int) -> int:
        """How far use goes up between this event and the next."""
        return max(0, self.before[event + 1] - self.after[event]) if event + 1 < len(self.before) else 0

    def begins_with(self, sizes: list[int]) -> bool:
        return self.sizes[: len(sizes)] == sizes


def choose(profile: Profile, capacity: int, base: int) -> set[int]:
    """The tensors to move, so that a step like this one that begins with `base` in use never uses more than
    `capacity`; or as near as can be.

    Earliest first, and no tensor without which it would fit as well.
    """
    shift = base - profile.base
    need = [crest + shift - capacity for crest in profile.before]
    last = len(need)
    until = [last if event is None else event for event in profile.needed]
    # A tensor is away in the stretches that end at events in (free, until].
    arriving: list[list[int]] = [[] for _ in range(last + 1)]
    for tensor, free in enumerate(profile.free):
        if free is not None and free + 1 <= min(until[tensor], last):
            arriving[free + 1].append(tensor)
    waiting: list[int] = []
    leaving = [0] * (last + 2)
    cover = 0
    chosen: set[int] = set()
    for event in range(last):
        cover -= leaving[event]
        for tensor in arriving[event]:
            heapq.heappush(waiting, tensor)
        while cover < need[event] and waiting:
            tensor = heapq.heappop(waiting)
            if until[tensor] < event:
                continue
            chosen.add(tensor)
            cover += profile.sizes[tensor]
            leaving[until[tensor] + 1] += profile.sizes[tensor]
    return _without_surplus(profile, need, until, chosen)


def _without_surplus(profile: Profile, need: list[int], until: list[int], chosen: set[int]) -> set[int]:
    """Drops tensors without which the step fits as well, the latest first."""
    covers = [0] * (len(need) + 2)
    # choose() takes only tensors that were free at some event.
    begins = {tensor: free + 1 for tensor, free in enumerate(profile.free) if free is not None}
    for tensor in chosen:
        covers[begins[tensor]] += profile.sizes[tensor]
        covers[min(until[tensor], len(need) - 1) + 1] -= profile.sizes[tensor]
    spare, cover = [], 0
    for event, wanted in enumerate(need):
        cover += covers[event]
        # An event that is not covered needs every chosen tensor.
        spare.append(cover - max(wanted, 0) if cover >= wanted else 0)
    kept = set(chosen)
    for tensor in sorted(chosen, reverse=True):
        stretch = range(begins[tensor], min(until[tensor], len(need) - 1) + 1)
        size = profile.sizes[tensor]
        if all(spare[event] >= size or need[event] <= 0 for event in stretch):
            kept.discard(tensor)
            for event in stretch:
                spare[event] -= size
    return kept
