"""A card for streamed weights on the CPU: its tensors play the card's, copies are done late and in queues of their own,
and new memory is full of garbage. So a missing wait, or memory that is let go of too early, gives wrong numbers or an
assertion. Its clock counts what the queues would take."""

import collections
import random

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gapless._stream.api import Stream, _models


class Copy:
    def __init__(self, queue, work):
        self.queue, self.work = queue, work
        queue.append(self)

    def finish(self):
        """As on a stream: all that was queued before, then this."""
        while self.work is not None:
            copy = self.queue.popleft()
            copy.work()
            copy.work = None


class Twin:
    out_of_memory = MemoryError

    def __init__(self, seed=0, haste=0.3, refusing=0.0):
        self.torch, self.device = torch, torch.device("cpu")
        self.random, self.haste, self.refusing = random.Random(seed), haste, refusing
        self.ins, self.outs = collections.deque(), collections.deque()
        self.now, self.log, self.hosts, self.devices = 0.0, [], [], []
        self.current = 0

    def host(self, nbytes):
        # Another alignment than memory that the CPU's allocator gives.
        host = torch.full((nbytes,), 0xAA, dtype=torch.uint8)
        self.hosts.append(StorageWeakRef(host.untyped_storage()))
        return host

    def view(self, host):
        return host.untyped_storage()

    def on_cpu(self, host, held):
        return self.tensor(host.untyped_storage(), held)

    def weak(self, storage):
        return StorageWeakRef(storage)

    def tensor(self, storage, held):
        return torch.empty(0, dtype=held.dtype).set_(storage, held.offset, held.size, held.stride)

    def stream(self):
        return self.current

    def is_capturing(self):
        return False

    def allocate(self, nbytes):
        if self.random.random() < self.refusing:
            raise MemoryError
        storage = torch.full((nbytes,), 0x55, dtype=torch.uint8).untyped_storage()
        self.devices.append((StorageWeakRef(storage), nbytes))
        return storage

    def live(self):
        """Bytes on the card that something holds, counted or not."""
        self.devices = [entry for entry in self.devices if not entry[0].expired()]
        return sum(nbytes for _, nbytes in self.devices)

    def pinned(self):
        self.hosts = [one for one in self.hosts if not one.expired()]
        return len(self.hosts)

    def bring(self, storage, host, after, watch):
        weak = StorageWeakRef(storage)
        if after is not None:
            after.finish()
        self.log.append(("in", storage.nbytes()))

        def work():
            assert not weak.expired(), "let go before it was filled"
            bytes_of(torch.UntypedStorage._new_with_weak_ptr(weak.cdata)).copy_(host)

        if watch is not None:
            watch.copies.append((0.0, storage.nbytes() / 1e9, storage.nbytes()))
        return Copy(self.ins, work)

    def take_back(self, storage, host):
        self.log.append(("out", storage.nbytes()))
        host.copy_(bytes_of(storage))
        return Copy(self.outs, lambda: None)

    def gate(self, mark):
        mark.finish()

    def also_used(self, tensor, stream):
        pass

    def settle(self):
        for queue in (self.ins, self.outs):
            if queue:
                queue[-1].finish()

    def clock(self):
        self.now += 1e-3
        return self.now

    def is_over(self, mark):
        return self.random.random() < 0.9

    def seconds(self, begin, end):
        return end - begin


def bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def stream(model, budget, watch=True, between=False, **how):
    """gapless.stream() over a twin, with the account checked at each change."""
    twin = Twin(**how)
    made = Stream(twin, _models(torch, model), budget, between)
    made.twin = twin

    def check(account):
        assert account.used <= account.budget
        alive = sum(nbytes for weak, nbytes in account._held.values() if not weak.expired())
        assert alive <= account._now
        assert account._now == sum(item.nbytes for item in made._runner.items if item.number in account._held)

    if watch:
        made._runner.account.watch = check
    return made
