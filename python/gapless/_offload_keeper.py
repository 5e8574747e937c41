"""Saved tensors of one device: which are there, which are on the host, and when they move. This file has the rules,
`transfer` copies.

A stash is the storage of one or more saved tensors. It begins on the device. `_begin` queues its copy to the host,
`_settle` lets the original go once that is done, `_bring` queues the copy back. A host copy stays as long as the
stash, so a graph can be walked twice. Autograd owns the saved tensors: when it lets go of the last, the stash is gone.

The original is freed only after the host has seen that the copy is done. Until then its version is checked, so a tensor
that is changed in place after it was saved raises torch's usual error, and no other bytes take its place.

A step ends when no stash is alive. If an earlier step began alike, this one has a plan (`_offload_plan`): the chosen
tensors leave as soon as they are saved. Without a plan, and for tensors that a plan did not foresee, each event checks
the memory in use: near the budget, the oldest tensors leave.
"""

import bisect
import warnings
import weakref
from collections import deque
from typing import Any, Callable, Optional

from . import _forks
from ._errors import GaplessError, GaplessWarning
from ._offload_plan import Profile, choose

# Profiles that are kept: a program may take turns between a few kinds of steps.
_PROFILES = 8


class HostFull(GaplessError):
    """There is no pinned host memory for one more tensor."""


class Kept:
    """A saved tensor that stays where it is."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Any) -> None:
        # Detached, because a node that saves its own output would keep itself alive.
        self.tensor = tensor if tensor.is_leaf else tensor.detach()
        self.version = tensor._version

    def unpack(self) -> Any:
        check_version(self.tensor, self.version)
        return self.tensor


class Saved:
    """A saved tensor in a stash: how it lies in its storage."""

    __slots__ = ("dtype", "number", "offset", "size", "stash", "stride", "version")

    def __init__(self, stash: "Stash", tensor: Any, number: int) -> None:
        self.stash, self.number, self.version = stash, number, tensor._version
        self.size, self.stride, self.offset, self.dtype = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype

    def unpack(self) -> Any:
        return self.stash.keeper.unpack(self)


class Stash:
    """A storage that saved tensors share. Its memory is in `aliases` (the original), in `host`, in `returned`, or in
    several of them."""

    __slots__ = (
        "__weakref__", "aliases", "back", "changed", "host", "index", "is_away", "is_dropped", "is_used", "keeper", "nbytes", "out", "returned", "serial",
        "stream", "version", "versions", "waiting", "weak",
    )  # fmt: skip

    def __init__(self, keeper: "Keeper", serial: int, storage: Any, version: int, weak: Any, stream: Any) -> None:
        self.keeper, self.serial, self.version, self.weak, self.stream = keeper, serial, version, weak, stream
        self.nbytes = storage.nbytes()
        # By number of the saved tensor: tensors on the original, which know its version, and the version each was
        # saved at.
        self.aliases: dict[int, Any] = {}
        self.versions: dict[int, int] = {}
        # Numbers that autograd has not asked for.
        self.waiting: set[int] = set()
        # The error that unpacking gives, for saved tensors whose original was changed in place before it left.
        self.changed: dict[int, str] = {}
        # The host's block, the event of the copy to it, the storage that came back, the event of the copy that fills
        # it.
        self.host = self.out = self.returned = self.back = None
        # Its number in the step, once it is counted; -1 before that.
        self.index = -1
        # The original was let go; nothing of it is on the device; autograd asked for it.
        self.is_dropped = self.is_away = self.is_used = False

    def __del__(self) -> None:
        # A finalizer may run within the keeper's own work, so it only queues: the next event does the rest.
        kept = list(self.aliases.values()) if self.out is not None else None if self.is_used else self.returned
        self.keeper._dead.append((self.serial, self.nbytes, self.host, (self.out, self.back), kept, self.is_away))


class Keeper:
    """The stashes of one device."""

    def __init__(self, transfer: Any, min_size: int, budget: Optional[int] = None, in_flight: Optional[int] = None) -> None:
        self.transfer, self.min_size = transfer, max(1, min_size)
        self._asked_budget, self._asked_in_flight = budget, in_flight
        # How often the lock is taken: a finalizer, a signal handler or a failing request may take it again. A tensor
        # that is saved then stays where it is, and only the outermost ends a step.
        self._lock = _forks.lock()
        self._depth = 0
        self._by_storage: weakref.WeakValueDictionary[int, Stash] = weakref.WeakValueDictionary()
        # On the device with no copy under way, oldest first; queued for the host; away; came back and was used. By
        # serial.
        self._resident: dict[int, weakref.ref[Stash]] = {}
        self._leaving: dict[int, weakref.ref[Stash]] = {}
        self._away: dict[int, weakref.ref[Stash]] = {}
        self._away_serials: list[int] = []
        self._clean: dict[int, weakref.ref[Stash]] = {}
        # Originals that others held too at the last look; originals that were let go here and still exist.
        self._shared: list[weakref.ref[Stash]] = []
        self._lingering: list[weakref.ref[Stash]] = []
        self._dead: deque[tuple[Any, ...]] = deque()
        # Blocks and storages that copies of dead stashes still use: released when the copies are done.
        self._ending: deque[tuple[Any, ...]] = deque()
        # The host had no memory, and none was released since.
        self._is_full = False
        self._serials = self._alive = 0
        # Bytes away, on their way out, back before they were asked for, and of the dead.
        self._away_bytes = self._leaving_bytes = self._ahead_bytes = self._kept_bytes = 0
        self._ahead: set[int] = set()
        self._largest = 0
        self._event: Optional[int] = None
        self._profile: Optional[Profile] = None
        self._profiles: list[Profile] = []
        self._expected: Optional[Profile] = None
        self._plan: set[int] = set()
        self._has_warned = False
        # True if the allocator calls `pressed` before it fails a request.
        self.is_asked = False
        self.budget = self.mark = self.in_flight = 0
        self.counts = dict.fromkeys(
            ("tensors_out", "tensors_back", "bytes_out", "bytes_back", "waits", "late", "refused", "steps", "planned_steps", "unplanned_out", "pressures"), 0
        )

    def __enter__(self) -> "Keeper":
        self._lock.acquire()
        self._depth += 1
        return self

    def __exit__(self, *_: Any) -> None:
        self._depth -= 1
        self._lock.release()

    # ---- what autograd calls ----

    def pack(self, tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        # A small window into a large storage is more likely a buffer that the program keeps than an activation.
        if nbytes < self.min_size or 8 * tensor.numel() * tensor.element_size() < nbytes or not self.transfer.takes(tensor):
            return Kept(tensor)
        with self:
            if self._depth > 1:
                return Kept(tensor)
            version = tensor._version
            stash = self._by_storage.get(storage._cdata)
            is_new = False
            if stash is None or stash.version != version or stash.nbytes != nbytes or stash.weak.expired():
                is_new, stash = True, self._make(storage, version)
            number = len(stash.versions)
            stash.versions[number] = version
            stash.waiting.add(number)
            if not stash.is_dropped:
                stash.aliases[number] = tensor.detach()
            saved = Saved(stash, tensor, number)
            if is_new:
                self._saved(stash)
            return saved

    def unpack(self, saved: Saved) -> Any:
        with self:
            stash = saved.stash
            is_first = not stash.is_used and self._depth == 1
            if is_first:
                event, needed = self._begin_event(), self._step().needed
                if needed[stash.index] is None:
                    needed[stash.index] = event
            stash.is_used = True
            stash.waiting.discard(saved.number)
            if saved.number in stash.changed:
                raise RuntimeError(stash.changed[saved.number])
            alias = stash.aliases.get(saved.number)
            if alias is not None:
                check_version(alias, saved.version)
            else:
                self._fetch(stash)
                alias = self.transfer.view(stash.returned, saved)
            # Backward asks next for the tensors that were saved before this one.
            if is_first:
                self._relieve(self._rise(), spare=stash)
                self._prefetch(stash.serial)
                self._end_event(event)
            return alias

    # ---- stashes ----

    def _make(self, storage: Any, version: int) -> Stash:
        self._settle()
        if self._profile is None:
            self._new_step()
        stash = Stash(self, self._serials, storage, version, self.transfer.weak(storage), self.transfer.stream())
        self._serials += 1
        self._alive += 1
        self._by_storage[storage._cdata] = stash
        self._resident[stash.serial] = weakref.ref(stash)
        self._shared.append(weakref.ref(stash))
        self._largest = max(self._largest, stash.nbytes)
        return stash

    def _saved(self, stash: Stash) -> None:
        """The event of a storage that is saved for the first time."""
        stash.index = self._step().save(stash.nbytes)
        event = self._begin_event()
        self._compare()
        if stash.index in self._plan:
            self._begin(stash)
        self._relieve(self._rise(), spare=stash)
        self._end_event(event)

    def _is_free(self, stash: Stash) -> bool:
        """True if the saved tensors alone hold the original."""
        if not stash.aliases:
            return False
        storage = next(iter(stash.aliases.values())).untyped_storage()
        # A storage that was resized, as those of sharded parameters are, belongs to the code that resizes it.
        return bool(storage.nbytes() == stash.nbytes and self.transfer.holders(storage) <= len(stash.aliases))

    def _begin(self, stash: Stash) -> bool:
        """Queues the copy to the host. False if the host has no memory for it."""
        if self._is_full:
            return False
        try:
            stash.host = self.transfer.host(stash.nbytes)
        except HostFull as error:
            self._is_full = True
            self.counts["refused"] += 1
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(f"gapless.offload leaves tensors on the device: {error}", GaplessWarning, stacklevel=2)
            return False
        stash.out = self.transfer.out(next(iter(stash.aliases.values())), stash.host, stash.stream)
        self.counts["tensors_out"] += 1
        self.counts["bytes_out"] += stash.nbytes
        self.counts["unplanned_out"] += stash.index not in self._plan
        self._resident.pop(stash.serial, None)
        self._leaving[stash.serial] = weakref.ref(stash)
        self._leaving_bytes += stash.nbytes
        return True

    def _settle(self) -> None:
        """Handles copies that are done and stashes that are gone."""
        while self._dead:
            serial, nbytes, host, events, kept, is_away = self._dead.popleft()
            self._alive -= 1
            self._resident.pop(serial, None)
            self._clean.pop(serial, None)
            if self._leaving.pop(serial, None) is not None:
                self._leaving_bytes -= nbytes
            if is_away:
                self._note_here(serial, nbytes)
            self._note_asked(serial, nbytes)
            if host is not None:
                self._ending.append((host, events, kept, nbytes))
                self._kept_bytes += nbytes if kept is not None else 0
        self._end(lambda kept, events: all(event is None or self.transfer.is_done(event) for event in events))
        # Copies end in the order in which they were queued.
        for ref in list(self._leaving.values()):
            stash = ref()
            if stash is not None:
                if not self.transfer.is_done(stash.out):
                    break
                self._drop(stash)
        self._lingering = [ref for ref in self._lingering if not self._is_gone(ref())]
        if self._alive == 0 and self._profile is not None and self._depth == 1:
            self._end_step()

    def _end(self, is_over: Callable[[Any, Any], bool]) -> None:
        """Releases the blocks of dead stashes that `is_over` says are no longer used."""
        for _ in range(len(self._ending)):
            if not self._ending:
                # A nested call released the rest.
                break
            host, events, kept, nbytes = ending = self._ending.popleft()
            if is_over(kept, events):
                self._kept_bytes -= nbytes if kept is not None else 0
                self.transfer.release(host)
                self._is_full = False
            else:
                self._ending.append(ending)

    def _wait(self, events: Any) -> bool:
        for event in events:
            if event is not None and not self.transfer.is_done(event):
                self.counts["waits"] += 1
                self.transfer.wait(event)
        return True

    def _drop(self, stash: Stash) -> None:
        """The copy is done: the original can go, unless it was asked for meanwhile."""
        if self._leaving.pop(stash.serial, None) is None:
            return
        self._leaving_bytes -= stash.nbytes
        stash.out = None
        if stash.is_used:
            self._clean[stash.serial] = weakref.ref(stash)
        else:
            self._let_go(stash)

    def _let_go(self, stash: Stash) -> None:
        for number, version in stash.versions.items():
            if number in stash.aliases and stash.aliases[number]._version != version:
                stash.changed[number] = version_error(stash.aliases[number], version)
        stash.is_dropped = True
        stash.aliases.clear()
        self._clean.pop(stash.serial, None)
        if not self._is_gone(stash):
            self._lingering.append(weakref.ref(stash))

    def _is_gone(self, stash: Optional[Stash]) -> bool:
        """True if the original of a stash that was let go is gone from the device."""
        if stash is None:
            return True
        if stash.returned is not None or not stash.weak.expired():
            return stash.returned is not None
        self._note_free(stash)
        self._note_away(stash)
        return True

    def _note_away(self, stash: Stash) -> None:
        stash.is_away = True
        self._away[stash.serial] = weakref.ref(stash)
        bisect.insort(self._away_serials, stash.serial)
        self._away_bytes += stash.nbytes

    def _note_here(self, serial: int, nbytes: int) -> None:
        del self._away[serial]
        del self._away_serials[bisect.bisect_left(self._away_serials, serial)]
        self._away_bytes -= nbytes

    def _note_asked(self, serial: int, nbytes: int) -> None:
        if serial in self._ahead:
            self._ahead.discard(serial)
            self._ahead_bytes -= nbytes

    def _note_free(self, stash: Stash) -> None:
        if stash.index < 0:
            return
        profile = self._step()
        if profile.free[stash.index] is None:
            # The current event, or the one before.
            profile.free[stash.index] = max(0, len(profile.before) - 1)

    def _bring(self, stash: Stash) -> None:
        """Queues the copy back. Raises if the device has no memory."""
        stash.returned, stash.back = self.transfer.back(stash.host, stash.nbytes)
        if stash.is_away:
            self._note_here(stash.serial, stash.nbytes)
            stash.is_away = False
        self.counts["tensors_back"] += 1
        self.counts["bytes_back"] += stash.nbytes

    def _fetch(self, stash: Stash) -> None:
        """Makes the memory that came back ready for the stream that asks."""
        if stash.returned is None:
            self.counts["late"] += 1
            try:
                self._bring(stash)
            except self.transfer.out_of_memory:
                self._relieve(stash.nbytes, spare=stash, at_least=stash.nbytes)
                self._bring(stash)
        self._note_asked(stash.serial, stash.nbytes)
        self.transfer.gate(stash.returned, stash.back)
        self._clean[stash.serial] = weakref.ref(stash)

    def _prefetch(self, serial: int) -> None:
        """Brings back tensors that were saved before `serial`, as far as the budget allows."""
        window = max(self.in_flight, self._largest)
        while True:
            at = bisect.bisect_left(self._away_serials, serial) - 1
            if at < 0:
                return
            serial = self._away_serials[at]
            stash = self._away[serial]()
            if stash is None:
                continue
            if self._ahead_bytes + stash.nbytes > window or self.transfer.used() + self._rise() + stash.nbytes > self.mark:
                return
            try:
                self._bring(stash)
            except self.transfer.out_of_memory:
                return
            self._ahead.add(serial)
            self._ahead_bytes += stash.nbytes

    # ---- steps and events ----

    def _end_step(self) -> None:
        """Ends the step: no stash is alive."""
        done, self._profile, self._event = self._step(), None, None
        if done.sizes:
            self._profiles = [done] + [old for old in self._profiles if old.sizes != done.sizes][: _PROFILES - 1]
            self.counts["steps"] += 1
            self.counts["planned_steps"] += self._expected is not None

    def _new_step(self) -> None:
        # Waits for copies of the last step: a host that is a step ahead of the device would pin twice as much.
        self._end(lambda kept, events: self._wait(events))
        self.budget = self.transfer.budget(self._asked_budget)
        self.in_flight = min(1 << 30, self.budget >> 4) if self._asked_in_flight is None else self._asked_in_flight
        # Leaves room for fragments and rounding: pages are 2 MiB at least.
        self.mark = self.budget - max(self.budget >> 6, min(8 << 20, self.budget >> 3))
        self._shared = []
        self._profile = Profile(self.transfer.used())
        self._expect(self._profiles[0] if self._profiles else None)

    def _expect(self, profile: Optional[Profile]) -> None:
        self._expected = profile
        # Leaves room for copies under way: without it each copy would be waited for.
        capacity = self.mark - self.in_flight
        self._plan = choose(profile, capacity, self._step().base) if profile is not None else set()

    def _compare(self) -> None:
        """Checks that the step still goes as expected. If not, expects another that began like this one."""
        now, expected = self._step(), self._expected
        index = len(now.sizes) - 1
        if expected is not None and index < len(expected.sizes) and expected.sizes[index] == now.sizes[index] and expected.saved[index] == now.saved[index]:
            return
        if expected is not None or index == 0:
            self._expect(next((old for old in self._profiles if old is not expected and old.begins_with(now.sizes)), None))

    def _step(self) -> Profile:
        """The profile of the current step. Called only within a step."""
        assert self._profile is not None
        return self._profile

    def _begin_event(self) -> int:
        crest = self.transfer.crest()
        self._event = event = self._step().event(crest + self._away_bytes - self._kept_bytes)
        self._settle()
        still = []
        for ref in self._shared:
            stash = ref()
            if stash is None or stash.is_dropped:
                continue
            if self._is_free(stash):
                self._note_free(stash)
            else:
                still.append(ref)
        self._shared = still
        return event

    def _end_event(self, event: int) -> None:
        self.transfer.crest()
        self._step().after[event] = self.transfer.used() + self._away_bytes - self._kept_bytes
        self._event = None

    def _rise(self) -> int:
        """Bytes that will be requested before the next event: as in the expected step, or a rather large guess."""
        if self._expected is not None and self._event is not None and self._event + 1 < len(self._expected.before):
            return self._expected.rise(self._event) if self.transfer.is_exact else max(self.budget >> 4, self._expected.rise(self._event))
        # Too small a guess costs a wait if the allocator asks before a request fails. If not, the request fails.
        return max(self.budget >> (3 if self.is_asked else 2), 2 * self._largest)

    # ---- pressure ----

    def _relieve(self, rise: int, spare: Optional[Stash] = None, at_least: int = 0) -> int:
        """Makes room for `rise` bytes below the mark, and for `at_least` in any case, without touching `spare`. Returns
        the bytes that left."""
        # Without a plan copies begin early, so that fewer are waited for.
        ahead = 0 if self._expected is not None or at_least else self.in_flight
        missing = max(self.transfer.used() + rise + ahead - self.mark, at_least)
        if missing <= 0:
            return 0
        freed = 0
        # Memory whose bytes the host has needs no copy: it is freed first, the least recently used before others.
        for ref in list(self._clean.values()):
            stash = ref()
            if freed < missing and stash is not None and stash is not spare and (at_least or not stash.waiting):
                freed += self._forget(stash)
        missing -= freed
        for ref in list(self._leaving.values()):
            stash = ref()
            missing -= stash.nbytes if stash is not None and not stash.is_used else 0
        for ref in list(self._resident.values()):
            stash = ref()
            if missing <= 0:
                break
            # Autograd has asked for it, and lets go of it soon.
            if stash is None or stash is spare or stash.is_used or not self._is_free(stash):
                continue
            self._note_free(stash)
            if not self._begin(stash):
                break
            missing -= stash.nbytes
        # Memory is held until its copy is done: wait if the next requests need it.
        self._end(lambda kept, events: kept is not None and self.transfer.used() + rise > self.mark and self._wait(events))
        for ref in list(self._leaving.values()):
            if freed >= at_least and self.transfer.used() + rise <= self.mark:
                break
            stash = ref()
            if stash is None:
                continue
            self._wait((stash.out,))
            before = self._away_bytes
            self._drop(stash)
            freed += self._away_bytes - before
        return freed

    def _forget(self, stash: Stash) -> int:
        """Frees device memory that was used and whose bytes the host has."""
        self._clean.pop(stash.serial, None)
        stash.is_used = False
        stash.waiting.update(stash.versions)
        before = self._away_bytes
        if stash.returned is None:
            self._let_go(stash)
        else:
            # `back` stays: until that event the copy reads the host's block.
            stash.returned = None
            self._note_away(stash)
        return self._away_bytes - before

    def pressed(self, missing: int) -> int:
        """A request cannot be served: frees at least `missing` bytes if it can, and returns how many."""
        with self:
            self.counts["pressures"] += 1
            self._settle()
            return self._relieve(0, at_least=max(1, missing)) if self._profile is not None else 0

    def ahead(self) -> int:
        """Bytes that came back and were not asked for so far."""
        return self._ahead_bytes

    def stats(self) -> dict[str, int]:
        with self:
            if self._depth == 1:
                self._settle()
            return dict(self.counts, tensors=self._alive, away_bytes=self._away_bytes, leaving_bytes=self._leaving_bytes, budget=self.budget)


def version_error(tensor: Any, expected: int) -> str:
    sizes = ", ".join(str(size) for size in tensor.size())
    return (
        f"one of the variables needed for gradient computation has been modified by an inplace operation: [{tensor.type()} [{sizes}]] is at version "
        f"{tensor._version}; expected version {expected} instead. Hint: enable anomaly detection to find the operation that failed to compute its "
        "gradient, with torch.autograd.set_detect_anomaly(True)."
    )


def check_version(tensor: Any, expected: int) -> None:
    """Raises torch's own error if a saved tensor was changed in place."""
    if tensor._version != expected:
        raise RuntimeError(version_error(tensor, expected))
