"""Messages between ranks: objects and small whole numbers reach the rank that asks for them.

The card's collectives move nothing. A rank that asks another one for a configuration, a shape or a length would read
its own, or nothing. Such things go through the store of the process group beside the collective. Everything else is
taken to be the same on all ranks, and numbers that are not known stay so.
"""

import functools
import pickle
import time
from collections import Counter
from typing import Any, Callable, Optional

from .._errors import GaplessError
from .together import Together

# Control flow does not depend on each element of a larger tensor.
_MOST = 4096
# A rank that waits longer than this waits for a message that never comes.
_PATIENCE = 120.0


def install(torch: Any, values: Any, together: Together, pace: Any) -> None:
    """From here on torch.distributed carries objects and known numbers. Processes without it have none."""
    if torch.distributed.is_available():
        _RankMessages(torch, values, together, pace).install()


class _RankMessages:
    def __init__(self, torch: Any, values: Any, together: Together, pace: Any) -> None:
        from torch.distributed import distributed_c10d

        self._torch, self._values, self._c10d = torch, values, distributed_c10d
        self._together, self._pace = together, pace
        self._counts: Counter[str] = Counter()
        self._inside = False

    def install(self) -> None:
        own = (self.broadcast_object_list, self.all_gather_object, self.gather_object, self.scatter_object_list, self.send_object_list, self.recv_object_list)
        for function in own:
            self._put(function.__name__, function)
        for name, after in (
            ("barrier", self._after_barrier),
            ("broadcast", self._after_broadcast),
            ("all_reduce", self._after_all_reduce),
            ("all_gather", self._after_all_gather),
            ("all_gather_into_tensor", self._after_all_gather_into_tensor),
        ):
            self._put(name, self._with(getattr(self._c10d, name), after))
        for name in ("recv", "irecv", "scatter", "gather", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single"):
            self._put(name, self._with(getattr(self._c10d, name), self._after_others))

    def _put(self, name: str, function: Callable[..., Any]) -> None:
        for owner in (self._c10d, self._torch.distributed):
            setattr(owner, name, function)

    def _with(self, function: Callable[..., Any], after: Callable[..., None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def told(*args: Any, **words: Any) -> Any:
            # Under a mode torch calls this function once more, from inside of the original.
            if self._inside:
                return function(*args, **words)
            self._inside = True
            try:
                done = function(*args, **words)
            finally:
                self._inside = False
            after(*args, **words)
            return done

        return told

    # ---- the store ----

    def _ranks(self, group: Any) -> "list[int]":
        return list(self._c10d.get_process_group_ranks(group or self._c10d._get_default_group()))

    def _key(self, *words: Any) -> str:
        """A name for the next message among these ranks: all of them call their collectives in the same order."""
        name = "/".join(map(str, words))
        self._counts[name] += 1
        return f"gapless/{name}/{self._counts[name]}"

    def _say(self, key: str, value: Any) -> None:
        self._c10d._get_default_store().set(key, pickle.dumps(value))

    def _comes(self, key: str, rank: int) -> bool:
        """Waits for the message of another rank. False if the rank has ended, or the time is over."""
        store, until = self._c10d._get_default_store(), time.monotonic() + _PATIENCE
        while not store.check([key]):
            ended = self._together.ended(rank)
            if (ended and not store.check([key])) or time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _hear(self, key: str, rank: int) -> Any:
        if not self._comes(key, rank):
            why = self._together.stopped(rank)
            if why is not None:
                # The other rank would have gone on, and so would this one.
                self._pace.stop_with(why)
            raise GaplessError(f"rank {self._c10d.get_rank()} waited for rank {rank}, which never told what it was asked for: its own words are above")
        return pickle.loads(self._c10d._get_default_store().get(key))

    def _source(self, rank: Optional[int], rank_of_group: Optional[int], ranks: "list[int]") -> int:
        return ranks[rank_of_group] if rank_of_group is not None else ranks[0] if rank is None else rank

    # ---- objects ----

    def broadcast_object_list(self, object_list: Any, src: Any = None, group: Any = None, device: Any = None, group_src: Any = None) -> None:
        ranks = self._ranks(group)
        source, key = self._source(src, group_src, ranks), self._key("broadcast", *ranks)
        if self._c10d.get_rank() == source:
            self._say(key, list(object_list))
        elif self._c10d.get_rank() in ranks:
            object_list[:] = self._hear(key, source)

    def all_gather_object(self, object_list: Any, obj: Any, group: Any = None) -> None:
        ranks = self._ranks(group)
        key = self._key("gather", *ranks)
        self._say(f"{key}/{self._c10d.get_rank()}", obj)
        object_list[:] = [self._hear(f"{key}/{rank}", rank) for rank in ranks]

    def gather_object(self, obj: Any, object_gather_list: Any = None, dst: Any = None, group: Any = None, group_dst: Any = None) -> None:
        ranks = self._ranks(group)
        key = self._key("gather", *ranks)
        self._say(f"{key}/{self._c10d.get_rank()}", obj)
        if self._c10d.get_rank() == self._source(dst, group_dst, ranks):
            object_gather_list[:] = [self._hear(f"{key}/{rank}", rank) for rank in ranks]

    def scatter_object_list(
        self, scatter_object_output_list: Any, scatter_object_input_list: Any = None, src: Any = None, group: Any = None, group_src: Any = None
    ) -> None:
        ranks = self._ranks(group)
        source, key = self._source(src, group_src, ranks), self._key("scatter", *ranks)
        if self._c10d.get_rank() == source:
            self._say(key, list(scatter_object_input_list))
        scatter_object_output_list[0] = self._hear(key, source)[ranks.index(self._c10d.get_rank())]

    def send_object_list(
        self, object_list: Any, dst: Any = None, group: Any = None, device: Any = None, group_dst: Any = None, use_batch: bool = False
    ) -> None:
        ranks = self._ranks(group)
        self._say(self._key("send", self._c10d.get_rank(), self._source(dst, group_dst, ranks)), list(object_list))

    def recv_object_list(self, object_list: Any, src: Any = None, group: Any = None, device: Any = None, group_src: Any = None, use_batch: bool = False) -> int:
        ranks = self._ranks(group)
        if src is None and group_src is None:
            raise GaplessError("recv_object_list without a source takes what comes first, which an estimate cannot know: name the source")
        source = self._source(src, group_src, ranks)
        object_list[:] = self._hear(self._key("send", source, self._c10d.get_rank()), source)
        return source

    def _after_barrier(self, group: Any = None, async_op: bool = False, device_ids: Any = None) -> None:
        """Ranks wait for each other: one may read what another one writes. A rank that has ended is not waited for."""
        ranks = self._ranks(group)
        if self._c10d.get_rank() in ranks:
            key = self._key("barrier", *ranks)
            self._say(f"{key}/{self._c10d.get_rank()}", None)
            for rank in ranks:
                self._comes(f"{key}/{rank}", rank)

    # ---- tensors ----

    def _value(self, tensor: Any) -> Any:
        """A copy of the tensor's value alone, if it is known."""
        value = self._values.value(tensor)
        return None if value is None else value.clone()

    def _small(self, tensor: Any) -> bool:
        """True if a tensor goes through the store. Type and size decide, which are the same on all ranks."""
        return bool(tensor.is_cuda and not tensor.is_floating_point() and not tensor.is_complex() and tensor.numel() <= _MOST)

    def _after_broadcast(self, tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None) -> None:
        ranks = self._ranks(group)
        if not self._small(tensor) or self._c10d.get_rank() not in ranks or len(ranks) == 1:
            return
        source, key = self._source(src, group_src, ranks), self._key("tensor", *ranks)
        if self._c10d.get_rank() == source:
            self._say(key, self._value(tensor))
        else:
            self._values.assign(tensor, self._hear(key, source))

    def _after_all_gather(self, tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> None:
        ranks = self._ranks(group)
        if not self._small(tensor) or self._c10d.get_rank() not in ranks:
            self._after_others(tensor_list)
            return
        key = self._key("tensors", *ranks)
        self._say(f"{key}/{self._c10d.get_rank()}", self._value(tensor))
        for rank, target in zip(ranks, tensor_list):
            self._values.assign(target, self._hear(f"{key}/{rank}", rank))

    def _after_all_gather_into_tensor(self, output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False) -> None:
        ranks = self._ranks(group)
        if not self._small(input_tensor) or self._c10d.get_rank() not in ranks:
            self._after_others(output_tensor)
            return
        key = self._key("tensors", *ranks)
        self._say(f"{key}/{self._c10d.get_rank()}", self._value(input_tensor))
        parts = [self._hear(f"{key}/{rank}", rank) for rank in ranks]
        known = all(part is not None for part in parts)
        self._values.assign(output_tensor, self._torch.cat([part.flatten() for part in parts]).reshape(output_tensor.shape) if known else None)

    def _after_all_reduce(self, tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:
        ranks, kind = self._ranks(group), self._c10d.ReduceOp
        value = self._value(tensor) if tensor.is_cuda else None
        if len(ranks) == 1 or self._c10d.get_rank() not in ranks or not tensor.is_cuda:
            return
        if not self._small(tensor):
            # Values that are known here are taken to be the same everywhere.
            if value is not None and (op is None or op == kind.SUM):
                self._values.assign(tensor, value * len(ranks))
            return
        key = self._key("reduced", *ranks)
        self._say(f"{key}/{self._c10d.get_rank()}", value)
        parts = [self._hear(f"{key}/{rank}", rank) for rank in ranks]
        self._values.assign(tensor, _reduced(self._torch, parts, op, kind) if all(part is not None for part in parts) else None)

    def _after_others(self, *args: Any, **words: Any) -> None:
        """Values from other ranks are not known. The first argument is the one that is written to."""
        target = args[0] if args else next(iter(words.values()))
        for tensor in target if isinstance(target, (tuple, list)) else [target]:
            if isinstance(tensor, self._torch.Tensor):
                self._values.assign(tensor, None)


def _reduced(torch: Any, parts: "list[Any]", op: Any, kind: Any) -> Any:
    stacked = torch.stack(parts)
    if op == kind.MAX:
        return stacked.amax(0)
    if op == kind.MIN:
        return stacked.amin(0)
    return stacked.sum(0).to(stacked.dtype) if op is None or op == kind.SUM else None
