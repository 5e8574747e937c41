"""Several ranks of a script, one process each, as torchrun starts them: every rank over a card of its own.

Collectives are bookkeeping (card/nccl.c), rendezvous and the rest are torch's own, so a program allocates what it
allocates on a machine with as many cards. The ranks are taken to tell each other the same: DistributedDataParallel,
which compares parameters and orders of buckets, finds its own.
"""

import socket
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import together
from .answer import Estimate
from .api import start
from .cards import Card


class Ranks:
    """The estimates of all ranks. The figures are those of the rank that holds most."""

    def __init__(self, ranks: "list[Estimate]") -> None:
        self.ranks = ranks
        self.worst = max(ranks, key=lambda rank: (rank.peak_reserved, rank.peak_allocated))

    @property
    def fits(self) -> bool:
        return all(rank.fits for rank in self.ranks)

    @property
    def text(self) -> str:
        at = self.ranks.index(self.worst)
        rows = [f"  rank {number:<4} allocated {rank.peak_allocated:>15,}  reserved {rank.peak_reserved:>15,}" for number, rank in enumerate(self.ranks)]
        return "\n".join([f"{len(self.ranks)} ranks, of which rank {at} holds most", *rows, self.worst.text])

    def dumps(self) -> str:
        import json

        return json.dumps({**self.worst.json, "fits": self.fits, "ranks": [rank.json for rank in self.ranks]})

    def html(self) -> Any:
        return self.worst.html()

    def save(self, path: Any) -> Any:
        return self.worst.save(path)


def run_ranks(job: "dict[str, Any]", kind: Card, count: int) -> Ranks:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def one(rank: int) -> Estimate:
        world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0, "MASTER_PORT": port}
        variables = {**{key: str(value) for key, value in world.items()}, "MASTER_ADDR": "127.0.0.1"}
        try:
            found, snapshot = start(job, kind, count=count, variables={**variables, together.MEET: meeting})
        finally:
            together.gone(meeting, rank)
        return Estimate(found, kind, snapshot)

    with tempfile.TemporaryDirectory(prefix="gapless-ranks-") as meeting, ThreadPoolExecutor(count) as pool:
        return Ranks(list(pool.map(one, range(count))))
