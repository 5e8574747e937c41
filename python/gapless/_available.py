"""Memory that this process can still get of a GPU. The GPU's free memory is not the answer: the pool has free memory of
its own, and limits apply."""

from typing import Any


def available(device: Any = None) -> int:
    """Returns how many bytes this process can still allocate on a GPU.

    It counts what is free in the pool and what the driver has free, within every limit of this process: the options
    limit and budget, its tenant's share, an open gapless.budget(), torch's memory fraction, and what elastic tensors
    hold. It does not count memory of this tenant's share that others have borrowed, although they must return it. One
    request of this size can still fail, if other processes take memory in the meantime.
    """
    import ctypes

    from . import _memory, _torch

    torch = _torch.import_torch()
    library = _memory._started()
    torch.cuda.init()
    index = int(torch.cuda._utils._get_device_index(device, optional=True))
    library.reserve(index, 0)
    usage, elastic = (ctypes.c_uint64 * 5)(), (ctypes.c_uint64 * 2)()
    library.optional("gapless_usage", index, 0, usage)
    library.optional("gapless_elastic_held", index, elastic)
    in_use, reserved, limit = int(usage[0]), int(usage[1]), int(usage[2])
    room = reserved - in_use + int(_memory.figures(index).device_free)
    if limit:
        room = min(room, limit - in_use - int(elastic[0]))
    return max(room, 0)
