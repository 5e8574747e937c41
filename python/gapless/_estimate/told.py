"""What one rank tells the others: whole numbers that `torch.distributed.broadcast` carries reach every rank.

The card's collectives move nothing, so a rank that asks another for a length or a list of numbers would read its own.
Here the values that the source knows go through the process group's store beside the collective. Whether a tensor takes
this way depends on its type and size alone, which are the same on all ranks: nobody waits for a value that never comes.
"""

import functools
import pickle
from collections import Counter
from typing import Any

# Of more elements, nobody's control flow depends on each.
_MOST = 1 << 20


def install(torch: Any, values: Any) -> None:
    """From here on broadcasts carry what `values` knows. Processes without torch.distributed have none."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    broadcast = c10d.broadcast
    counts: Counter[str] = Counter()

    @functools.wraps(broadcast)
    def told(tensor: Any, src: "int | None" = None, group: Any = None, async_op: bool = False, group_src: "int | None" = None) -> Any:
        done = broadcast(tensor, src, group, async_op, group_src)
        if not tensor.is_cuda or tensor.is_floating_point() or tensor.is_complex() or tensor.numel() > _MOST:
            return done
        group = group or c10d._get_default_group()
        source = src if src is not None else c10d.get_global_rank(group, group_src)
        ranks = c10d.get_process_group_ranks(group)
        if c10d.get_rank() not in ranks:
            return done
        # Ranks of a group call its collectives in the same order.
        name = "-".join(map(str, ranks))
        counts[name] += 1
        key = f"gapless/told/{name}/{counts[name]}"
        store = c10d._get_default_store()
        if c10d.get_rank() == source:
            store.set(key, pickle.dumps(values.value(tensor)))
        else:
            value = pickle.loads(store.get(key))
            if value is not None:
                values.learn(tensor, value)
        return done

    c10d.broadcast = torch.distributed.broadcast = told
