"""Chooses the weights that stay on the card. Pure: numbers in, a plan out.

A chain is what one pass does: steps that compute for some time, and uses of weights, each from one step to another one.
A weight that does not stay crosses the link once for each of its uses, in the order of use, as early as the room that
earlier weights leave allows. simulate() says how long a pass takes then, choose() looks for the fastest choice that
keeps to the budget, and bound() is the least time that any choice could need.

Where blocks are alike the first attempt is spread evenly: a run of weights that all stream would starve the look-ahead.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Optional

# Room that choose() leaves for weights on their way: multiples of what the widest step needs.
_ROOMS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
# How many sizes choose() tries as the largest one that streams.
_SIZES = 5
# How many passes choose() simulates at most while it improves a choice, and the most uses of a chain for that.
_TRIALS = 600


class Use(NamedTuple):
    """A weight that is needed from the begin of step `first` to the end of step `last`."""

    item: int
    first: int
    last: int


class Chain(NamedTuple):
    """One pass. Uses are in the order of their first steps."""

    sizes: Sequence[int]
    seconds: Sequence[float]
    uses: Sequence[Use]

    def used(self) -> int:
        """Bytes of the weights that a pass needs."""
        return sum(self.sizes[item] for item in {use.item for use in self.uses})


class Link(NamedTuple):
    """How fast weights come: bytes a second, and seconds for each copy beside that."""

    speed: float
    latency: float = 0.0


class Pass(NamedTuple):
    """A simulated pass: its time, what work waited for the link, the bytes that crossed it, the most on the card."""

    seconds: float
    waited: float
    moved: int
    peak: int


class Plan(NamedTuple):
    """The weights that stay, and what a pass takes then; None: some step alone needs more than the budget."""

    resident: frozenset[int]
    expected: Optional[Pass]


def bound(chain: Chain, budget: int, link: Link) -> float:
    """The least time of a pass: the work, or the link's time for what cannot stay."""
    return max(sum(chain.seconds), max(0, chain.used() - budget) / link.speed)


def simulate(chain: Chain, resident: Iterable[int], budget: int, link: Link) -> Optional[Pass]:
    """One pass in which only `resident` is there from the begin; None if the budget is too small for one of the steps.

    Copies begin in the order of use. Room is free again at the end of a use's last step.
    """
    sizes, stays = chain.sizes, set(resident)
    room = budget - sum(sizes[item] for item in stays)
    if room < 0:
        return None
    uses = [use for use in chain.uses if use.item not in stays]
    steps = len(chain.seconds)
    ending: list[int] = [0] * steps
    for use in uses:
        ending[use.last] += sizes[use.item]
    now = waited = link_free = 0.0
    taken = most = moved = at = begun = 0
    arrival = [0.0] * len(uses)
    count = len(uses)
    for step in range(steps):
        while at < count and taken + sizes[uses[at].item] <= room:
            size = sizes[uses[at].item]
            link_free = max(link_free, now) + size / link.speed + link.latency
            arrival[at] = link_free
            taken += size
            moved += size
            at += 1
        start = now
        most = max(most, taken)
        while begun < count and uses[begun].first <= step:
            if begun >= at:
                return None
            start = max(start, arrival[begun])
            begun += 1
        waited += start - now
        now = start + chain.seconds[step]
        taken -= ending[step]
    return Pass(now, waited, moved, budget - room + most)


def choose(chain: Chain, budget: int, link: Link, forced: Iterable[int] = (), is_rough: bool = False) -> Plan:
    """The weights that should stay within `budget`. `forced` stay in any case, if all of them fit. `is_rough`: no
    search for a better choice, which is not worth its time while the times of the work are not known."""
    used = {use.item for use in chain.uses}
    forced = frozenset(item for item in forced if item in used)
    if chain.used() <= budget:
        return Plan(frozenset(used), simulate(chain, used, budget, link))
    order: list[int] = list(dict.fromkeys(use.item for use in chain.uses))
    best: Optional[tuple[Pass, frozenset[int]]] = None
    for largest in sorted({chain.sizes[item] for item in order}, reverse=True)[:_SIZES]:
        # A weight much larger than the others needs as much room when it comes as when it stays.
        kept = forced.union(item for item in order if chain.sizes[item] > largest)
        widest = max(_needs(chain, kept), default=0)
        for factor in _ROOMS:
            if widest * factor > budget and factor > 1:
                break
            for by_time in (False, True):
                found = _spread(chain, order, max(0, budget - int(widest * factor)), kept, by_time)
                best = _better(best, simulate(chain, found, budget, link), found)
    best = _better(best, simulate(chain, forced, budget, link), forced)
    if best is None:
        return Plan(forced if sum(chain.sizes[item] for item in forced) <= budget else frozenset(), None)
    if not is_rough:
        best = _improve(chain, order, budget, link, forced, best)
    # Room that is left over spares the link, if the pass takes no longer.
    for item in sorted((item for item in order if item not in best[1] and not is_rough), key=lambda item: -chain.sizes[item]):
        with_it = simulate(chain, best[1] | {item}, budget, link)
        if with_it is not None and with_it.seconds <= best[0].seconds:
            best = with_it, best[1] | {item}
    return Plan(best[1], best[0])


def _better(best: Optional[tuple[Pass, frozenset[int]]], found: Optional[Pass], chosen: frozenset[int]) -> Optional[tuple[Pass, frozenset[int]]]:
    """The faster one; of equally fast ones the one that moves less."""
    if found is None or (best is not None and (found.seconds, found.moved) >= (best[0].seconds, best[0].moved)):
        return best
    return found, chosen


def _needs(chain: Chain, stays: frozenset[int]) -> list[int]:
    """The weights that do not stay and that each step needs at once."""
    change = [0] * (len(chain.seconds) + 1)
    for use in chain.uses:
        if use.item not in stays:
            change[use.first] += chain.sizes[use.item]
            change[use.last + 1] -= chain.sizes[use.item]
    needs, now = [], 0
    for amount in change[:-1]:
        now += amount
        needs.append(now)
    return needs


def _spread(chain: Chain, order: Sequence[int], room: int, forced: frozenset[int], by_time: bool) -> frozenset[int]:
    """Weights of at most `room` bytes, spread evenly over the bytes of the pass, or over its time."""
    kept = set(forced)
    left = room - sum(chain.sizes[item] for item in kept)
    others = [item for item in order if item not in kept]
    weights = _shares(chain, others) if by_time else {item: float(chain.sizes[item]) for item in others}
    total = sum(weights.values()) or 1.0
    bytes_of_others = sum(chain.sizes[item] for item in others) or 1
    # The share of the bytes that streams. Debt grows with the pass and is paid by each weight that streams.
    share, debt = max(0.0, 1 - left / bytes_of_others), 0.0
    waiting = []
    for item in others:
        debt += share * bytes_of_others * weights[item] / total
        if debt >= chain.sizes[item] / 2 or chain.sizes[item] > left:
            debt -= chain.sizes[item]
            waiting.append(item)
        else:
            kept.add(item)
            left -= chain.sizes[item]
    # Room that is left over goes to the largest weights that still fit.
    for item in sorted(waiting, key=lambda item: -chain.sizes[item]):
        if chain.sizes[item] <= left:
            kept.add(item)
            left -= chain.sizes[item]
    return frozenset(kept)


def _shares(chain: Chain, items: Sequence[int]) -> dict[int, float]:
    """How much time passes until the next weight is needed: what can hide its copy."""
    wanted = set(items)
    firsts = [(use.first, use.item) for use in chain.uses if use.item in wanted]
    shares = dict.fromkeys(items, 0.0)
    for (first, item), (following, _) in zip(firsts, [*firsts[1:], (len(chain.seconds), -1)]):
        shares[item] += sum(chain.seconds[first:following])
    return shares


def _improve(
    chain: Chain, order: Sequence[int], budget: int, link: Link, forced: frozenset[int], best: tuple[Pass, frozenset[int]]
) -> tuple[Pass, frozenset[int]]:
    """Lets one more weight stay, or exchanges two, while that makes the pass faster."""
    least = bound(chain, budget, link)
    trials = max(60, min(_TRIALS, 120_000 // max(1, len(chain.uses))))
    # A pass that is as fast as can be is not worth a search.
    while trials > 0 and best[0].seconds > least * 1.002:
        before = best
        kept = best[1]
        inside = [item for item in order if item in kept and item not in forced]
        outside = [item for item in order if item not in kept]
        moves: list[tuple[Optional[int], Optional[int]]] = [(None, item) for item in outside] + [(item, None) for item in inside]
        # Neighbours in the order first: a late start and an early end are what matters most often.
        moves += [(leaves, comes) for comes in outside for leaves in reversed(inside)]
        for leaves, comes in moves:
            if trials <= 0:
                break
            found = frozenset(kept - {leaves} | ({comes} if comes is not None else set()))
            if sum(chain.sizes[item] for item in found) > budget:
                continue
            trials -= 1
            best = _better(best, simulate(chain, found, budget, link), found) or best
            if best[0].seconds < before[0].seconds * 0.999:
                break
        if best[0].seconds >= before[0].seconds * (1 - 1e-9):
            break
    return best
