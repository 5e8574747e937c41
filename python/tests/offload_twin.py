"""A device for offload on the CPU: its tensors play the device's, copies are done late and in queues of their own, and
freed memory is overwritten. So a missing wait, a block that is released too early or a storage that is freed too soon
gives wrong numbers or an assertion.
"""

import collections
import random
import threading

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from gapless._offload import Offload
from gapless._offload_keeper import HostFull, Keeper


class Job:
    def __init__(self, queue, work):
        self.queue, self.work = queue, work
        queue.append(self)

    def finish(self):
        """As on a stream: all that was queued before, then this."""
        while self.work is not None:
            job = self.queue.popleft()
            job.work()
            job.work = None


class Twin:
    is_exact = False
    out_of_memory = MemoryError

    def __init__(self, capacity, seed=0, haste=0.3, host_limit=1 << 60):
        self.capacity, self.host_limit, self.haste = capacity, host_limit, haste
        self.random = random.Random(seed)
        self.queues = collections.deque(), collections.deque()
        self.seen, self.pinned, self.most, self.log = {}, {}, 0, []
        self.is_refusing = False
        self.lock = threading.RLock()

    def takes(self, tensor):
        storage = tensor.untyped_storage()
        self._see(storage)
        return True

    def _see(self, storage):
        with self.lock:
            self.seen = {at: weak for at, weak in self.seen.items() if not weak[0].expired()}
            self.seen.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
            self.most = max(self.most, self.used())

    def used(self):
        with self.lock:
            return sum(nbytes for weak, nbytes in self.seen.values() if not weak.expired())

    crest = used

    def budget(self, asked):
        return self.capacity

    def weak(self, storage):
        return StorageWeakRef(storage)

    def holders(self, storage):
        return torch._C._storage_Use_Count(storage._cdata) - 1

    def stream(self):
        return None

    def view(self, returned, saved):
        return torch.empty(0, dtype=saved.dtype).set_(returned.untyped_storage(), saved.offset, saved.size, saved.stride)

    def host(self, nbytes):
        if sum(host.numel() for host in self.pinned.values()) + nbytes > self.host_limit:
            raise HostFull("the twin has no more")
        host = torch.full((nbytes,), 0xAA, dtype=torch.uint8)
        self.pinned[host.data_ptr()] = host
        return host

    def release(self, host):
        del self.pinned[host.data_ptr()]
        host.fill_(0xAA)

    def out(self, tensor, host, stream):
        weak = StorageWeakRef(tensor.untyped_storage())
        self.log.append(("out", host.numel()))

        def work():
            # A stream keeps no tensor alive: the code that queued the copy has to.
            assert not weak.expired(), "let go before it was copied"
            host.copy_(bytes_of(torch.UntypedStorage._new_with_weak_ptr(weak.cdata)))

        return Job(self.queues[0], work)

    def back(self, host, nbytes):
        # Now and then there is no memory at first.
        self.is_refusing = not self.is_refusing and self.random.random() < 0.1
        if self.is_refusing:
            raise MemoryError
        returned = torch.full((nbytes,), 0x55, dtype=torch.uint8)
        self._see(returned.untyped_storage())
        weak = StorageWeakRef(returned.untyped_storage())
        self.log.append(("back", nbytes))

        def work():
            assert not weak.expired(), "let go before it was filled"
            bytes_of(torch.UntypedStorage._new_with_weak_ptr(weak.cdata)).copy_(host)

        return returned, Job(self.queues[1], work)

    def gate(self, returned, back):
        back.finish()

    def is_done(self, event):
        if event.work is not None and self.random.random() < self.haste:
            event.finish()
        return event.work is None

    def wait(self, event):
        event.finish()

    def host_stats(self):
        return {"host_live": sum(host.numel() for host in self.pinned.values())}


def bytes_of(storage):
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


class TwinOffload(Offload):
    """The real scope, over a twin."""

    def __init__(self, twin, min_size=1024, **how):
        super().__init__(min_size=min_size, **how)
        self.keeper = Keeper(twin, self._min_size, self._budget, self._in_flight)
        self._own[0] = self.keeper

    def _keeper(self, tensor):
        return self.keeper
