"""Tensors that grow: addresses for the largest size, pages as they are needed.

    cache = gapless.elastic((8192, 16, 128), torch.bfloat16)     # no memory yet
    keys = cache.grow(100)                                       # an ordinary tensor of 100 rows
    cache.shrink(40)                                             # pages go back once no queued work uses them

A thread of the pool maps pages ahead, so that growth within these pages makes no driver call in the caller's thread.
See docs/elastic.md, and crates/gapless-torch/src/elastic.rs for the pools.
"""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, Union

from . import _forks, _options
from ._errors import GaplessError, OptionError

if TYPE_CHECKING:
    from ._library import Library

_GRANULE = 2 << 20
_TRIM_WAIT_MS = 10_000
# Reentrant: a finalizer or a signal handler may run in the same thread while it holds the lock.
_lock = _forks.lock()
_shared_pools: dict[tuple[int, int], "ElasticPool"] = {}


class ElasticPool:
    """Pages of one size that elastic tensors of one GPU share: what one gives back, another can take.

    limit   the most bytes of the pool; None means no limit but the GPU and this process's budget and share
    page    the size of a page, a multiple of 2 MiB. From 16 MiB on, we measured no cost in decoding
    ahead   how many pages to map ahead of each tensor's end
    """

    def __init__(self, limit: Union[int, str, None] = None, page: Union[int, str] = "16MiB", ahead: int = 2, device: Any = None) -> None:
        self.page = _bytes("page", page)
        if self.page % _GRANULE:
            raise OptionError(f"page={page} is not a multiple of 2 MiB")
        self.limit = None if limit is None else _bytes("limit", limit)
        if self.limit is not None and self.limit < self.page:
            raise OptionError(f"limit={limit} is less than one page ({self.page} bytes)")
        if not isinstance(ahead, int) or isinstance(ahead, bool) or ahead < 0:
            raise OptionError(f"ahead={ahead!r} is not a number of pages, 0 or more")
        self.ahead = ahead
        self._library, self.device = _ready(device)
        self._number = int(self._library.optional("gapless_elastic_pool", self.device, self.page, self.limit or 0))
        if self._number < 0:
            raise GaplessError(f"no elastic pool on cuda:{self.device}: {self._library.last_error()}")
        self._end = weakref.finalize(self, self._library.optional, "gapless_elastic_close", self._number)
        # At exit the driver may be gone.
        self._end.atexit = False

    def elastic(self, shape: Sequence[int], dtype: Any, dim: int = 0) -> "Elastic":
        """An elastic tensor with pages of this pool."""
        return Elastic(shape, dtype, dim, self)

    def trim(self) -> int:
        """Gives pages that no tensor uses back to the GPU, also those that were mapped ahead. Returns their bytes."""
        return int(self._library.optional("gapless_elastic_trim", self._number, _TRIM_WAIT_MS))

    def stats(self) -> dict[str, int]:
        """Bytes: held, used by tensors, spare (mapped ahead, or not unmapped yet), free, limit (0: none)."""
        import ctypes

        figures = (ctypes.c_uint64 * 5)()
        self._library.optional("gapless_elastic_stats", self._number, figures)
        return dict(zip(("held", "used", "spare", "free", "limit"), map(int, figures)))

    def __repr__(self) -> str:
        return f"gapless.elastic_pool(limit={self.limit}, page={self.page}, ahead={self.ahead}, device={self.device})"


def elastic_pool(limit: Union[int, str, None] = None, page: Union[int, str] = "16MiB", ahead: int = 2, device: Any = None) -> ElasticPool:
    """Makes a pool of pages that several elastic tensors share: see ElasticPool."""
    return ElasticPool(limit, page, ahead, device)


def elastic(
    shape: Sequence[int], dtype: Any, dim: int = 0, page: Union[int, str] = "16MiB", *, pool: Optional[ElasticPool] = None, device: Any = None
) -> "Elastic":
    """Makes a tensor that grows along one dimension, up to `shape`, without moving.

    shape   the largest size. Gapless reserves its addresses, and takes no memory yet
    dtype   a torch.dtype
    dim     the dimension that grows. If other dimensions come before it, each of their entries begins at a new page
    page    the size of a page. Tensors with pages of the same size share a pool, unless you name one
    pool    the elastic_pool() that the pages come from
    """
    if pool is None:
        size = _bytes("page", page)
        _, index = _ready(device)
        with _lock:
            pool = _shared_pools.get((index, size))
            if pool is None:
                # setdefault: a finalizer or a signal handler may have made the pool in between.
                pool = _shared_pools.setdefault((index, size), ElasticPool(page=size, device=index))
    elif device is not None and _ready(device)[1] != pool.device:
        raise OptionError(f"device={device} is not the GPU of the pool, cuda:{pool.device}")
    return Elastic(shape, dtype, dim, pool)


class Elastic:
    """A tensor that grows: grow(), shrink(), release(). Made by gapless.elastic().

    size      the present length along its dimension
    capacity  the largest length
    tensor    the part that exists, an ordinary tensor. It stays valid for everything that was not given back
    full      the tensor of the largest size, for kernels and CUDA graphs that are captured before it has grown. Do not
              touch the part beyond size: it is like freed memory
    """

    def __init__(self, shape: Sequence[int], dtype: Any, dim: int, pool: ElasticPool) -> None:
        import ctypes

        from ._share import taken
        from ._torch import import_torch

        torch = import_torch()
        if not isinstance(dtype, torch.dtype):
            raise OptionError(f"dtype={dtype!r} is not a torch.dtype, such as torch.bfloat16")
        sizes = [int(size) for size in shape]
        if not sizes or any(size < 1 for size in sizes):
            raise OptionError(f"shape={tuple(shape)} needs one dimension or more, each of them 1 or more")
        if not -len(sizes) <= dim < len(sizes):
            raise OptionError(f"dim={dim} is not a dimension of {tuple(shape)}")
        self.pool, self.dim, self.capacity, self.size = pool, dim % len(sizes), sizes[dim], 0
        self._row = int(dtype.itemsize)
        for size in sizes[self.dim + 1 :]:
            self._row *= size
        self._stripes = 1
        for size in sizes[: self.dim]:
            self._stripes *= size
        # Each entry of the dimensions before it has slots of its own.
        self._slots = -(-self.capacity * self._row // pool.page)
        pointer = ctypes.c_void_p()
        library: Library = pool._library
        self._range = int(library.optional("gapless_elastic_new", pool._number, self._stripes * self._slots, ctypes.byref(pointer)))
        if self._range < 0:
            raise GaplessError(f"an elastic tensor of {tuple(shape)} cannot be made: {library.last_error()}")
        storage = taken(torch, library, [pointer.value])[0].untyped_storage()
        strides = [0] * len(sizes)
        step = 1
        for at in range(len(sizes) - 1, self.dim - 1, -1):
            strides[at] = step
            step *= sizes[at]
        step = self._slots * pool.page // dtype.itemsize
        for at in range(self.dim - 1, -1, -1):
            strides[at] = step
            step *= sizes[at]
        if self._stripes > 1 and pool.page % dtype.itemsize:
            raise OptionError(f"a page of {pool.page} bytes is not a multiple of an element's {dtype.itemsize}")
        self.full = torch.empty(0, dtype=dtype, device=storage.device).set_(storage, 0, sizes, strides)
        self.dtype = dtype
        self._holes: set[int] = set()
        # resize() to a size above the first and up to the second needs no other pages than those that are mapped.
        self._same: tuple[int, int] = (0, -1)
        self._busy = _forks.lock()
        self._set(0, set(), True)

    @property
    def tensor(self) -> Any:
        """The part that exists now."""
        return self.full.narrow(self.dim, 0, self.size)

    def grow(self, n: int = 1) -> Any:
        """Makes room for `n` more, and returns `tensor`. The contents of the new part are undefined. If there is not
        enough memory, it raises torch.OutOfMemoryError and changes nothing."""
        self.resize(self.size + _count(n))
        return self.tensor

    def shrink(self, n: int = 1) -> Any:
        """Gives the last `n` back, and returns `tensor`. Gapless unmaps pages once no queued work uses them."""
        if _count(n) > self.size:
            raise GaplessError(f"an elastic tensor of {self.size} cannot shrink by {n}")
        self.resize(self.size - n)
        return self.tensor

    def resize(self, size: int) -> None:
        """Grows or shrinks to `size`."""
        # A decode step resizes the cache of each layer, mostly within mapped pages. That case takes no lock, because
        # the lock would be most of its time. A thread that changes pages replaces `_same` first; if it does so here,
        # this one takes the lock.
        same = self._same
        if type(size) is int and same[0] < size <= same[1]:
            self.size = size
            if self._same is same:
                return
        if not 0 <= _count(size) <= self.capacity:
            raise GaplessError(f"an elastic tensor for {self.capacity} cannot reach {size}: make it with a larger shape")
        with self._busy:
            holes = {slot for slot in self._holes if (slot + 1) * self.pool.page <= size * self._row}
            self._set(size, holes, size > self.size)

    def release(self, part: slice) -> int:
        """Gives back the pages wholly inside of `part`; returns their bytes. The size stays; take() gets new pages."""
        first, last = self._pages_of(part, inside=True)
        with self._busy:
            new = set(range(first, last)) - self._holes
            self._set(self.size, self._holes | new, False)
        return len(new) * self._stripes * self.pool.page

    def take(self, part: slice) -> None:
        """Makes released parts usable again, with undefined contents. If there is not enough memory, it raises
        torch.OutOfMemoryError and changes nothing."""
        first, last = self._pages_of(part, inside=False)
        with self._busy:
            self._set(self.size, self._holes - set(range(first, last)), True)

    @property
    def nbytes(self) -> int:
        """The bytes of the pages that it has."""
        return (self._wanted(self.size) - len(self._holes)) * self._stripes * self.pool.page

    def _wanted(self, size: int) -> int:
        return -(-size * self._row // self.pool.page)

    def _pages_of(self, part: slice, inside: bool) -> tuple[int, int]:
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise GaplessError(f"{part} has steps: name a part without")
        begin, end = start * self._row, max(start, stop) * self._row
        if inside:
            # If the part reaches the tensor's end, its last page has nothing else in it.
            last = self._wanted(self.size) if stop >= self.size else end // self.pool.page
            return -(-begin // self.pool.page), last
        return begin // self.pool.page, -(-end // self.pool.page)

    def _set(self, size: int, holes: set[int], waits: bool) -> None:
        import ctypes

        # An empty range in a new object: a resize() that has read the old object takes the lock.
        self._same = (0, -1)
        runs = _runs(self._wanted(size), holes)
        ahead = (self._wanted(size), min(self._wanted(size) + self.pool.ahead, self._slots))
        yes = [(stripe * self._slots + first, stripe * self._slots + last) for stripe in range(self._stripes) for first, last in runs]
        extra = [(stripe * self._slots + ahead[0], stripe * self._slots + ahead[1]) for stripe in range(self._stripes)] if ahead[0] < ahead[1] else []
        pairs = (ctypes.c_uint64 * max(2 * (len(yes) + len(extra)), 1))(*(number for pair in [*yes, *extra] for number in pair))
        library: Library = self.pool._library
        code = library.optional("gapless_elastic_want", self.pool._number, self._range, pairs, len(yes), len(extra), int(waits))
        if code == 0:
            self.size, self._holes = size, holes
            if not holes:
                last, page = self._wanted(size), self.pool.page
                self._same = ((last - 1) * page // self._row, min(last * page // self._row, self.capacity))
            return
        message = library.last_error()
        if (size, holes) != (self.size, self._holes):
            # Asks for the pages of before again.
            self._set(self.size, self._holes, False)
        if code < 0:
            raise GaplessError(f"an elastic tensor cannot reach {size}: {message}")
        from ._torch import import_torch

        need = self._stripes * (self._wanted(size) - len(holes)) * self.pool.page
        raise import_torch().OutOfMemoryError(f"gapless: an elastic tensor needs {need} bytes to reach {size}, and has {self.nbytes}: {message}")

    def __repr__(self) -> str:
        return f"<elastic {self.dtype} {tuple(self.full.shape)}, {self.size} of {self.capacity} along {self.dim}>"


def _runs(count: int, holes: set[int]) -> list[tuple[int, int]]:
    """The slots below `count` that are no holes, as ranges."""
    runs, start = [], 0
    for hole in sorted(holes):
        if hole > start:
            runs.append((start, min(hole, count)))
        start = hole + 1
    if start < count:
        runs.append((start, count))
    return runs


class BlockTable:
    """Which blocks of an elastic cache each sequence has: the table of paged attention, with torch only.

        cache = gapless.elastic((blocks, 2, heads, 16, width), torch.bfloat16)
        table = gapless.BlockTable(cache, block=16)
        table.append("a", 100)                        # room for 100 more tokens of sequence "a"
        cache.tensor[table.rows(["a", "b"])]          # their blocks, one row a sequence, padded with 0

    The first dimension of the cache counts blocks. The lowest free block is taken first, so that the cache can shrink
    when sequences end. Nothing here touches the GPU but rows() and the cache's growth.
    """

    def __init__(self, cache: Elastic, block: int) -> None:
        if cache.dim != 0:
            raise OptionError("the cache of a block table grows along dimension 0")
        if not isinstance(block, int) or block < 1:
            raise OptionError(f"block={block!r} is not a number of tokens, 1 or more")
        self.cache, self.block = cache, block
        self._blocks: dict[Any, list[int]] = {}
        self._tokens: dict[Any, int] = {}
        self._free: list[int] = []

    def append(self, sequence: Any, tokens: int = 1) -> list[int]:
        """Makes room for more tokens of a sequence, and returns its new blocks. A new sequence begins here. If there is
        not enough memory, it raises torch.OutOfMemoryError and changes nothing."""
        import heapq

        total = self._tokens.get(sequence, 0) + _count(tokens)
        count = -(-total // self.block) - len(self._blocks.get(sequence, ()))
        missing = count - len(self._free)
        if missing > 0:
            before = self.cache.size
            self.cache.grow(missing)
            for number in range(before, before + missing):
                heapq.heappush(self._free, number)
        new = [heapq.heappop(self._free) for _ in range(count)]
        self._blocks.setdefault(sequence, []).extend(new)
        self._tokens[sequence] = total
        return new

    def end(self, sequence: Any) -> None:
        """Ends a sequence and frees its blocks. The cache shrinks if the last blocks are free."""
        import heapq

        for number in self._blocks.pop(sequence):
            heapq.heappush(self._free, number)
        del self._tokens[sequence]
        used = max((number for blocks in self._blocks.values() for number in blocks), default=-1) + 1
        if used < self.cache.size:
            self._free = [number for number in self._free if number < used]
            heapq.heapify(self._free)
            self.cache.resize(used)

    def blocks(self, sequence: Any) -> list[int]:
        """The blocks of a sequence, in order."""
        return list(self._blocks[sequence])

    def tokens(self, sequence: Any) -> int:
        """The number of tokens of a sequence."""
        return self._tokens[sequence]

    def rows(self, sequences: Sequence[Any], dtype: Any = None) -> Any:
        """A tensor on the cache's GPU, one row a sequence, padded with 0 to the longest."""
        from ._torch import import_torch

        torch = import_torch()
        lists = [self._blocks[sequence] for sequence in sequences]
        width = max((len(blocks) for blocks in lists), default=0)
        padded = [blocks + [0] * (width - len(blocks)) for blocks in lists]
        return torch.tensor(padded, dtype=dtype or torch.int32).reshape(len(lists), width).to(self.cache.full.device, non_blocking=True)


def _count(n: Any) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 0:
        raise OptionError(f"{n!r} is not a number, 0 or more")
    return n


def _bytes(name: str, value: Union[int, str]) -> int:
    try:
        return _options.positive_bytes(value)
    except ValueError as error:
        raise OptionError(f"{name}={value} is not {error}") from None


def _ready(device: Any) -> "tuple[Library, int]":
    """The library, and a GPU's number. Gapless need not be torch's allocator."""
    from . import _memory, _torch

    torch = _torch.import_torch()
    library = _memory._started()
    if not library.has("gapless_elastic_pool"):
        raise GaplessError("this build of the library has no elastic tensors: update gapless")
    torch.cuda.init()
    return library, int(torch.cuda._utils._get_device_index(device, optional=True))
