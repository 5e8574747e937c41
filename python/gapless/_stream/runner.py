"""The weights on the card over time: calls of modules come in, copies and releases go out.

Before a module runs, its weights are on the card, or their copies are on their way and its work waits for them. After
it they are released, unless the plan lets them stay. Copies run ahead in the expected order, as far as the budget
allows. A weight that finds no room is read by the card from the host's memory: slow, and right.

Between passes the host's memory is the truth for all that does not stay, so that writes by the program count. What
stays is copied to the host before it is released, because a write by `.data` leaves no trace.

Two waits exist. One is for `_lock`: whoever holds it copies and releases, runs none of the program's code but handlers
of memory pressure, and those give up after a second. The other is for copies that are queued, in `settle`: each waits
for work that was queued before it. An exception may come anywhere, in our own lines too. `_is_changing` is then left
True, and the next call repairs: it takes nothing over but what the tensors show, and forgets the copies ahead.
"""

import sys
import threading
from typing import Any, Callable, Optional

from .. import _forks
from .._errors import GaplessError
from . import grads, quiet, showing
from .account import Account
from .items import Item, Place
from .order import Expected, Key, Kinds, Record, Step
from .plan import Plan
from .planning import Planner
from .timing import Watch

# Written so often in passes, an item stays: each time it would have to be copied to the host.
_OFTEN = 2


class Frame:
    """A call of a module that is under way."""

    __slots__ = ("counted", "epoch", "hooks", "is_over", "items", "place", "run", "step")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.items: tuple[Item, ...] = ()
        # Items whose `wanted` counts this call.
        self.counted: list[Item] = []
        self.step: Optional[Step] = None
        self.run: Any = None
        # The runner's epoch when `counted` was taken: after a repair it counts nothing.
        self.epoch = -1
        # Gapless looks at each tensor that autograd saves in this pass: the function that does.
        self.hooks: Any = None
        self.is_over = False


class Run:
    """A pass that is under way."""

    __slots__ = ("expected", "is_over", "key", "steps", "watch")

    def __init__(self, key: Key, expected: Expected) -> None:
        self.key, self.expected = key, expected
        self.steps: list[Step] = []
        self.watch: Optional[Watch] = None
        self.is_over = False


class _Local(threading.local):
    def __init__(self) -> None:
        self.stack: list[Frame] = []
        # A call of this thread is being left. True between calls: two interrupts kept it from being left.
        self.is_leaving = False


class Runner:
    def __init__(self, card: Any, budget: int, is_ahead: bool = False) -> None:
        self.card = card
        self.items: list[Item] = []
        self.places: list[Place] = []
        self.account = Account(budget, card.weak)
        self.planner = Planner(budget)
        self.kinds = Kinds()
        self.local = _Local()
        # Items on the card, by their storage.
        self.by_storage: dict[int, Item] = {}
        self._back = grads.Backward(self)
        # Called with each decision, by tests and for the table of stats().
        self.tell: Callable[[str, Optional[Item]], None] = lambda what, item: None
        self.counts = dict.fromkeys(("passes", "copies", "copied_bytes", "late", "in_place", "cancelled", "written_back", "left_order", "relieved"), 0)
        self._lock = _forks.lock()
        # True while the state changes: an interrupt can leave it so, and the next call repairs.
        self._is_changing = False
        # Grows with each repair. Uses ahead that were prepared in an older epoch are not prepared any more.
        self._epoch = 0
        # The outermost calls that are under way, of all threads.
        self.passes: set[Frame] = set()
        # Modules died: the weights that only they had are let go of.
        self.has_dead = False
        self._ended = self._calls = 0
        # Items that are too small to move: they stay in any case.
        self._fixed: frozenset[int] = frozenset()
        # The next pass, whose copies begin when those of this one are queued; and the kind that followed each kind.
        self._is_ahead = is_ahead
        self._next: Optional[Run] = None
        self._followers: dict[Key, Key] = {}
        self._latest: Optional[Key] = None
        self.is_over = False

    def fixed_bytes(self) -> int:
        return sum(self.items[number].nbytes for number in self._fixed)

    def add(self, items: list[Item], places: list[Place], fixed: frozenset[int]) -> None:
        """Another model. Numbers of items and places follow those that are here."""
        with self._lock, quiet.of(self.card.torch):
            self._change()
            self.sweep()
            self.items.extend(items)
            self.places.extend(places)
            self._fixed |= fixed
            self.planner.forget(self.items, self._fixed)
            for item in self.items:
                item.is_resident = item.is_resident or self.planner.all_fit or item.number in self._fixed
            for item in items:
                if item.number in fixed and (self.account.has_room(item.nbytes) or self._make_room(item.nbytes, None, is_urgent=True)):
                    if self._bring(item, None):
                        showing.show(self.card, item, self._ended)
            self._is_changing = False

    # ---- calls ----

    def enter(self, place: Place, is_compiled: bool, args: Any = (), kwargs: Any = None) -> None:
        """A module is called."""
        stack = self.local.stack
        frame = Frame(place)
        stack.append(frame)
        items = place.whole if is_compiled else place.items
        if len(stack) > 1 and not items:
            frame.run = stack[0].run
            return
        with self._lock, quiet.of(self.card.torch):
            if self.is_over:
                return
            self._change()
            if len(stack) > 1:
                frame.run = stack[0].run
            elif self._back.is_here():
                # A checkpoint computes again, in the middle of a backward pass.
                frame.run = self._back.run
            else:
                self._back.end()
                self.passes.add(frame)
                self._begin(frame, self._size(args, kwargs))
                grads.push(self, frame)
            if items:
                self._prepare(frame, items, place.in_place and not is_compiled)
            self._is_changing = False

    def leave(self, depth: int, is_whole: bool = True) -> None:
        """The calls above `depth` of this thread are over, well or not. After an interrupt, another call goes on."""
        stack = self.local.stack
        if len(stack) == depth + 1 and depth and not stack[-1].items:
            stack.pop()
            self.local.is_leaving = False
            return
        if not depth and stack and stack[0].hooks is not None:
            # First, and with no lock: whatever fails below, autograd saves tensors as ever again.
            grads.pop(self, stack[0])
        with self._lock, quiet.of(self.card.torch):
            self._change()
            while len(stack) > depth:
                frame = stack[-1]
                self._end_call(frame)
                if len(stack) == 1:
                    if frame.run is not None and frame.run is not self._back.run:
                        self._end(frame.run, is_whole)
                    self.passes.discard(frame)
                stack.pop()
            self._is_changing = False
        self.local.is_leaving = False

    def _prepare(self, frame: Frame, items: tuple[Item, ...], is_read_in_place: bool) -> None:
        run: Run = frame.run
        found: Optional[int] = 0
        if is_read_in_place:
            # Rows of a table: the copy on the card if there is one, else the host's memory.
            frame.items = items = tuple(item for item in items if item.storage is not None or self.planner.all_fit)
            for item in items:
                item.users.add(frame)
        else:
            frame.step = Step(frame.place.number, items)
            found = self._follow(run, frame)
            frame.items = items
            for item in items:
                item.users.add(frame)
            run.steps.append(frame.step)
        for item in items:
            if item.storage is not None and not item.is_shown and item.versions != item.versions_now():
                # The program wrote to the host's bytes since the copy was begun.
                self._release(item)
            item.is_called = found is None
            if item.storage is None and item.number not in self.planner.in_place:
                self.counts["late"] += run.key in self.kinds.records
                self.tell("late", item)
                self._demand(item, run)
        if frame.step is not None and run.watch is not None:
            run.watch.before()
        for item in items:
            if item.storage is not None:
                showing.show(self.card, item, self._ended)
            else:
                self.counts["in_place"] += 1
                self.tell("in_place", item)
        if frame.step is not None and run.watch is not None:
            run.watch.after()
        self._pump(run)

    def _follow(self, run: Run, frame: Frame) -> Optional[int]:
        """Finds a call in the expected order. Uses before it that were left out are not awaited any more."""
        expected = self._now(run.expected)
        found = expected.find(frame.place.number)
        if found is None:
            self.counts["left_order"] += run.key in self.kinds.records
            return None
        begin, end = expected.begin[found], expected.begin[found + 1]
        for item in expected.uses[expected.begin[expected.at] : min(begin, expected.ahead)]:
            item.wanted -= 1
            self._let_go(item)
        frame.counted, frame.epoch = expected.uses[begin : max(begin, min(end, expected.ahead))], self._epoch
        expected.at = found + 1
        expected.ahead = max(expected.ahead, end)
        return found

    def _end_call(self, frame: Frame) -> None:
        if frame.step is not None and frame.step.last < 0:
            frame.step.last = max(0, len(frame.run.steps) - 1)
        frame.is_over = True
        if frame.epoch == self._epoch:
            for item in frame.counted:
                item.wanted -= 1
        frame.counted = []
        self._calls += 1
        for item in frame.items:
            item.users.discard(frame)
            item.last_used = self._calls
            self._let_go(item)
        if frame.items and (len(self.local.stack) > 1 or frame.run is self._back.run):
            self._pump(frame.run)

    def use_in_backward(self, item: Item, held: Any) -> Any:
        """A weight as it was in the forward pass, for the node of autograd that runs next."""
        with self._lock, quiet.of(self.card.torch):
            self._change()
            self._back.use(item)
            self._is_changing = False
            return self.card.tensor(item.view if item.storage is None else item.storage, held)

    def over_in_backward(self) -> None:
        with self._lock, quiet.of(self.card.torch):
            self._change()
            self._back.end()
            self._is_changing = False

    def begin_backward(self) -> "Run":
        """A pass that has no module around it: its steps are the weights that autograd asks for."""
        place, size = self._latest or (0, 0)
        key = (-1 - place, size)
        record, forward = self.kinds.records.get(key), self.kinds.records.get((place, size))
        steps = record.steps if record is not None else []
        if record is None and forward is not None:
            # Of a pass that was not seen yet: the forward pass the other way round.
            steps = [Step(-1 - item.number, (item,)) for step in reversed(forward.steps) for item in reversed(step.items)]
        run = Run(key, Expected(steps))
        if self.planner.wants_times(record):
            run.watch = Watch(self.card)
        self._pump(run)
        return run

    def frame_of_use(self, run: "Run", item: Item) -> Frame:
        # Places of backward are numbered below those of modules.
        frame = Frame(Place(-1 - item.number, item.name))
        frame.run = run
        return frame

    # ---- passes ----

    def _continue(self, key: Key, record: Optional[Record]) -> Optional[Run]:
        """The pass that copies were begun for, if it is this one and their bytes are still what the host has."""
        run, self._next = self._next, None
        if run is None:
            return None
        if run.key != key or record is None or run.expected.steps is not record.steps:
            self._forget_ahead(run.expected)
            return None
        for item in run.expected.uses[: run.expected.ahead]:
            if item.storage is not None and not item.is_shown and item.versions != item.versions_now():
                self._release(item)
                self._bring(item, run)
        return run

    def _forget_ahead(self, expected: Expected) -> None:
        """Uses that were prepared and did not come."""
        self._now(expected)
        for item in expected.uses[expected.begin[expected.at] : expected.ahead]:
            item.wanted -= 1
            self._let_go(item)
        expected.ahead = 0

    def _now(self, expected: Expected) -> Expected:
        """After a repair no use is prepared."""
        if expected.epoch != self._epoch:
            expected.epoch = self._epoch
            expected.ahead = expected.begin[min(expected.at, len(expected.steps))]
        return expected

    def _size(self, args: Any, kwargs: Any) -> int:
        """The magnitude of a pass's input: a prompt and a single token are passes of two kinds."""
        tensor = self.card.torch.Tensor
        found = next((value for value in (*args, *(kwargs or {}).values()) if isinstance(value, tensor)), None)
        return int(found.numel()).bit_length() if found is not None else 0

    def _begin(self, frame: Frame, size: int) -> None:
        place = frame.place
        if self.card.is_capturing():
            raise GaplessError("a streamed model cannot be captured into a CUDA graph, because its weights move: stop() the stream first, or run it outside")
        self.sweep()
        for item in self.items:
            self.check(item)
        key = (place.number, size)
        record = self.kinds.records.get(key)
        self.planner.learn(self.card)
        # Kinds that come by turns share a plan.
        plan = self.planner.plan(self.kinds.together(key))
        if plan is not None:
            self._adopt(plan)
        if self._latest is not None:
            self._followers[self._latest] = key
        self._latest = key
        run = self._continue(key, record) or Run(key, Expected(record.steps if record is not None else self._guess(place)))
        if self.planner.wants_times(record):
            run.watch = Watch(self.card)
        frame.run = run
        self._pump(run)

    def _guess(self, place: Place) -> list[Step]:
        """For a pass of a new kind: the order of another kind of the same module, or the order of definition."""
        known = next((record for key, record in self.kinds.records.items() if key[0] == place.number), None)
        if known is not None:
            return known.steps
        return [Step(other.number, other.items) for other in self.places[place.number : place.end] if other.items and not other.in_place]

    def _end(self, run: Run, is_whole: bool = True) -> None:
        if run.is_over:
            return
        run.is_over = True
        self._forget_ahead(run.expected)
        for item in self.items:
            if item.is_called and item.storage is not None and not item.users and not item.is_resident:
                self._keep_or_release(item)
            elif item.storage is not None and not item.is_shown and not item.users and item.wanted <= 0 and not self._is_ahead:
                # It came to stay, and the pass did not use it. Writes by the program count in what is shown.
                if item.is_resident and item.versions == item.versions_now():
                    showing.show(self.card, item, self._ended)
                else:
                    self._release(item)
        self._ended += 1
        self.counts["passes"] += 1
        self.kinds.note(run.key)
        # A pass that failed in the middle says nothing about the order, unless nothing else does.
        if not run.steps or (not is_whole and run.key in self.kinds.records):
            return
        record, sure = self.kinds.learn(run.key, run.steps)
        if run.watch is not None:
            run.watch.end()
            self.planner.timed(record, run.watch, sure)

    def _adopt(self, plan: Plan) -> None:
        often = {item.number for item in self.items if item.written >= _OFTEN}
        for item in self.items:
            item.is_resident = item.number in plan.resident or item.number in self._fixed or item.number in often
            self._let_go(item)

    # ---- copies ----

    def _pump(self, run: Run) -> None:
        """Begins the copies of the uses ahead, in their order, as long as there is room."""
        expected = self._now(run.expected)
        uses, account = expected.uses, self.account
        while expected.ahead < len(uses):
            item = uses[expected.ahead]
            if item.storage is None and item.held and item.number not in self.planner.in_place:
                if not account.has_room(item.nbytes) and not self._make_room(item.nbytes, run, is_urgent=False):
                    return
                if not self._bring(item, run):
                    return
            item.wanted += 1
            expected.ahead += 1
        if self._is_ahead and run is not self._next:
            if self._next is None:
                following = self._followers.get(run.key)
                record = self.kinds.records.get(following) if following is not None else None
                if record is None or following is None:
                    return
                self._next = Run(following, Expected(record.steps))
            self._pump(self._next)

    def _demand(self, item: Item, run: Run) -> None:
        if self.account.has_room(item.nbytes) or self._make_room(item.nbytes, run, is_urgent=True):
            self._bring(item, run)

    def _bring(self, item: Item, run: Optional[Run]) -> bool:
        card = self.card
        # In this order, so that an interrupt leaves nothing that the repair does not find, and a traceback no storage.
        item.home, item.mark = card.stream(), None
        try:
            item.storage = card.allocate(item.nbytes)
        except card.out_of_memory:
            self.tell("out_of_memory", item)
            return False
        storage = item.storage
        self.by_storage[storage._cdata] = item
        self.account.add(item.number, storage, item.nbytes)
        watch = run.watch if run is not None else None
        item.versions = item.versions_now()
        item.mark = card.bring(storage, item.host, item.after, watch)
        item.seen_by = []
        self.counts["copies"] += 1
        self.counts["copied_bytes"] += item.nbytes
        self.tell("bring", item)
        return True

    def _make_room(self, nbytes: int, run: Optional[Run], is_urgent: bool) -> bool:
        """Releases what is not needed: what does not stay any more, then, if it is urgent, what is needed last."""
        idle = [item for item in self.items if item.storage is not None and not item.users and item.number not in self._fixed]
        idle.sort(key=lambda item: item.last_used)
        for item in idle:
            if not item.wanted and not item.is_resident:
                self._release(item)
                if self.account.has_room(nbytes):
                    return True
        if not is_urgent or nbytes > self.account.budget:
            return False
        far = {id(item): (not item.is_resident, run.expected.distance(item) if run is not None else -item.last_used) for item in idle}
        for item in sorted(idle, key=lambda item: far[id(item)], reverse=True):
            if item.storage is not None:
                self.counts["cancelled"] += 1
                self.tell("cancel", item)
                self._release(item)
                if self.account.has_room(nbytes):
                    return True
        # Weights of the modules around this one: where they are used after all, the card reads them from the host.
        around = set(self.local.stack[:-1])
        for item in self.items:
            if item.storage is not None and item.users and item.users <= around and item.number not in self._fixed:
                self.counts["cancelled"] += 1
                self.tell("cancel", item)
                self._release(item)
                if self.account.has_room(nbytes):
                    return True
        return False

    def _let_go(self, item: Item) -> None:
        """Releases an item that no call uses, that no copy ahead is meant for and that does not stay. One that stayed
        until now, or that came when it was called, is released when its room is needed."""
        if item.storage is None or item.users or item.wanted > 0 or item.is_resident or item.is_called or self._is_exposed(item):
            return
        self._release(item)

    def _keep_or_release(self, item: Item) -> None:
        """A pass ends, and an item that it asked for unexpectedly is on the card. Another pass may ask for it again.
        Its tensors show the host's bytes until then, so that writes count; those by `.data` would not be noticed."""
        if not self._is_ahead or (item.is_shown and item.is_written()):
            self._release(item)
        elif item.is_shown:
            showing.hide(item)

    def _is_exposed(self, item: Item) -> bool:
        return item.is_shown and item.shown_since < self._ended

    def _release(self, item: Item) -> None:
        if item.is_shown:
            is_written = item.is_written()
            if is_written:
                item.written += 1
            if is_written or self._is_exposed(item):
                item.after = self.card.take_back(item.storage, item.host)
                self.counts["written_back"] += 1
            showing.hide(item)
        elif item.mark is not None:
            # Its memory is for other work now, which waits until the copy is over.
            self.card.gate(item.mark)
        self.by_storage.pop(item.storage._cdata, None)
        item.storage = item.mark = item.home = None
        self.account.remove(item.number)
        self.tell("release", item)

    # ---- interrupts, and the end ----

    def check(self, item: Item) -> None:
        """Takes over what the program gave to the item's tensors by `.data`; an item without any is dropped."""
        if item.held and not showing.check(self.card, item):
            if item.storage is not None:
                self._release(item)
            self.drop(item)

    def _change(self) -> None:
        if self.is_over:
            return
        if self._is_changing:
            self._repair()
        self._is_changing = True

    def _repair(self) -> None:
        """An exception came in the middle of a change: brings what the tensors show and what is counted in line."""
        self.card.settle()
        self._epoch += 1
        # What is shown now may be written to by `.data` before the next pass.
        self._ended += 1
        self._next = None
        for item in self.items:
            item.wanted = 0
            item.users = {frame for frame in item.users if not frame.is_over}
            if item.is_half_shown:
                showing.hide(item)
            if not item.is_shown:
                # Its copy may not have been queued, or the program may write to the host's bytes before it is used.
                item.storage = item.mark = item.home = None
        self.by_storage = {item.storage._cdata: item for item in self.items if item.storage is not None}
        self.account.rebuild({item.number: (item.storage, item.nbytes) for item in self.items if item.storage is not None})
        self.planner.forget(self.items, self._fixed)

    def sweep(self) -> None:
        """Lets go of weights whose modules died, if the program has no other use of them."""
        if not self.has_dead:
            return
        alive = {item.number for place in self.places if not place.is_dead for item in (*place.items, *place.whole)}
        dead = {item.number: item for place in self.places if place.is_dead for item in place.items if item.number not in alive}
        for item in dead.values():
            # Two: the item's own, and the one of this call.
            if all(sys.getrefcount(held.tensor) <= 2 and held.tensor._use_count() <= 1 for held in item.held):
                if item.storage is not None and not item.users:
                    self._release(item)
                if item.storage is None:
                    self.drop(item)
        self.has_dead = any(item.held for item in dead.values())

    def drop(self, item: Item) -> None:
        """An item is the program's again, or no one's. Its number stays."""
        item.held, item.is_resident = [], False
        item.host = item.view = item.after = None
        self._fixed -= {item.number}
        for place in self.places:
            if item in place.items or item in place.whole:
                place.items = tuple(other for other in place.items if other is not item)
                place.whole = tuple(other for other in place.whole if other is not item)
        self.planner.forget(self.items, self._fixed)
        self.tell("left", item)
