"""The ends of a stream: weights that make room for another request, and all of them back where they came from."""

from typing import Any

from .._errors import GaplessError
from . import calls, quiet
from .items import Item
from .order import Kinds


def relieve(runner: Any, missing: int) -> int:
    """A request for memory cannot be served: releases weights that no call uses. Returns their bytes."""
    lock, freed = runner._lock, 0
    is_mine = lock._is_owned()
    # An interrupt may come as soon as the lock is held.
    try:
        if not is_mine and not lock.acquire(timeout=1):
            return 0
        # The request may be our own, for a copy: that one reads the weight from the host instead.
        if runner._is_changing or runner.is_over:
            return 0
        with quiet.of(runner.card.torch):
            runner._change()
            runner.sweep()
            idle = [item for item in runner.items if item.storage is not None and not item.users and item.number not in runner._fixed]
            # The weight that was used longest ago stays: it is needed again first.
            for item in sorted(idle, key=lambda item: (item.is_resident, -item.last_used)):
                if freed < missing:
                    freed += item.nbytes
                    runner.counts["relieved"] += 1
                    runner.tell("relieve", item)
                    runner._release(item)
            runner._is_changing = False
        return freed
    finally:
        if not is_mine:
            # Nothing is called before the release, because an interrupt comes after a call.
            try:
                lock.release()
            except RuntimeError:
                # The wait for it gave up.
                pass


def give_back(runner: Any, items: list[Item]) -> None:
    """Items of a model that could not be taken as a whole: the host has all that is new of them."""
    with runner._lock, quiet.of(runner.card.torch):
        runner.card.settle()
        for item in items:
            for held in item.held if item.host is not None else ():
                held.tensor.data = runner.card.on_cpu(item.host, held).to(item.origin)
            item.is_shown = item.is_half_shown = False
            item.storage = item.mark = None
            runner.drop(item)
        # The next call counts anew.
        runner._is_changing = True


def stop(runner: Any) -> None:
    """Gives the tensors back the memory that they came from."""
    if runner.local.is_leaving:
        calls.settle(runner)
    with runner._lock, quiet.of(runner.card.torch):
        if runner.is_over:
            return
        if runner.local.stack or runner.passes:
            raise GaplessError("the stream cannot stop inside of a pass of its model: call stop() after it")
        runner._change()
        if runner._next is not None:
            runner._forget_ahead(runner._next.expected)
        for item in runner.items:
            runner.check(item)
            if not item.held:
                continue
            if item.storage is not None and item.origin != runner.card.device:
                runner._release(item)
            elif item.storage is None and item.origin == runner.card.device:
                item.storage = runner.card.allocate(item.nbytes)
                runner.card.gate(runner.card.bring(item.storage, item.host, item.after, None))
        runner.card.settle()
        for item in runner.items:
            for held in item.held:
                if item.origin == runner.card.device:
                    held.tensor.data = runner.card.tensor(item.storage, held)
                else:
                    held.tensor.data = runner.card.on_cpu(item.host, held).to(item.origin)
            item.held, item.host, item.view, item.storage = [], None, None, None
        runner.account.rebuild({})
        runner.by_storage, runner.kinds, runner._next = {}, Kinds(), None
        runner._is_changing = False
        runner.is_over = True
