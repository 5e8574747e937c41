"""A script of jax, run without a card: each call of a function that the script gave to `jax.jit` is compiled for the
card instead of being run, and gives arrays of zeros that take no memory. All else runs on the CPU.

What lives on the devices at each call is known from `jax.live_arrays()`: arrays that appeared since the call before are
allocations, arrays that went are frees. With the allocations that XLA planned for the call, that is the sequence of
requests that the allocator of each device sees.
"""

import functools
import time
import weakref
from typing import Any, Callable, Optional

from .ahead import Compiler, Program
from .allocations import of
from .unplanned import workspace

# The alignment at which XLA's CPU takes an array without a copy.
_ALIGN = 64


def complete(program: Program) -> None:
    """The memory of a call, from the dump; without one, from XLA's sums."""
    if program.dump:
        program.takes = [(("output" if a.output else "temporary"), a.size) for a in of(program.dump) if a.taken]
        more = workspace(program.dump)
        if more:
            program.takes.append(("temporary", more))
    if not program.takes:
        program.takes = [("output", max(program.outputs - program.aliased, 0)), ("temporary", program.temporaries)]


class Enough(BaseException):
    """The script has run long enough: no handler of the script should stop this."""


class Request:
    """An allocation on a device, from one position in the sequence to another; `end` is None while it lives."""

    __slots__ = ("what", "size", "start", "end")

    def __init__(self, what: str, size: int, start: int) -> None:
        self.what, self.size, self.start = what, size, start
        self.end: Optional[int] = None


class Watch:
    """The record of a run. `requests[d]` are those of device `d`."""

    def __init__(self, compiler: Compiler, count: int, seconds: "Optional[float]" = None, calls: "Optional[int]" = None) -> None:
        self.compiler, self.count = compiler, count
        self.requests: list[list[Request]] = [[] for _ in range(count)]
        self.programs: dict[Any, Program] = {}
        self.calls: list[Program] = []
        self.unwatched: set[str] = set()
        self._time = 0
        self._live: dict[int, tuple[Any, list[Optional[Request]]]] = {}
        self._limit = None if seconds is None else time.monotonic() + seconds
        self._most = calls
        self.stopped: Optional[str] = None

    # ---- what lives ----

    def tick(self) -> int:
        self._time += 1
        return self._time

    def look(self) -> None:
        """Compares the arrays that live with those of the look before."""
        import jax

        arrays = {id(array): array for array in jax.live_arrays()}
        for key, (reference, requests) in list(self._live.items()):
            if reference() is None or key not in arrays or arrays[key] is not reference() or _deleted(reference()):
                del self._live[key]
                now = self.tick()
                for request in filter(None, requests):
                    request.end = now
        for key, array in arrays.items():
            if key not in self._live and not _deleted(array):
                self._add(array, "array")

    def _add(self, array: Any, what: str, given: "Optional[list[Optional[Request]]]" = None) -> None:
        requests = self._taken(array, what) if given is None else given
        self._live[id(array)] = (weakref.ref(array), requests)

    def _taken(self, array: Any, what: str) -> "list[Optional[Request]]":
        requests: list[Optional[Request]] = [None] * self.count
        for device, size in _bytes(array):
            if device < self.count and size:
                request = Request(what, size, self.tick())
                requests[device] = request
                self.requests[device].append(request)
        return requests

    # ---- calls ----

    def call(self, jitted: Any, name: str, args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> Any:
        import jax

        if self._limit is not None and time.monotonic() > self._limit:
            self.stopped = "time"
            raise Enough
        if self._most is not None and len(self.calls) >= self._most:
            self.stopped = "calls"
            raise Enough
        traced = jitted.trace(*args, **kwargs)
        self.look()
        key = (id(jitted), _signature(args, kwargs))
        program = self.programs.get(key)
        if program is None:
            program = self.compiler.compile(traced.lower(lowering_platforms=("cuda",)), name)
            complete(program)
            # The signature is only valid while the function lives.
            program.keeps = jitted  # type: ignore[attr-defined]
            self.programs[key] = program
        self.calls.append(program)
        wanted = len({device for array in jax.tree.leaves((args, kwargs)) if isinstance(array, jax.Array) for device, _ in _bytes(array)}) or 1
        outputs = self._outputs(traced)
        taken = self._run(program, min(wanted, self.count))
        self._hand_over(traced, args, kwargs, jax.tree.leaves(outputs), taken)
        return outputs

    def _run(self, program: Program, devices: int) -> "list[list[Request]]":
        """The requests of a call: all are taken, then the temporaries are freed. Returns those of the outputs."""
        kept: list[list[Request]] = []
        for device in range(devices):
            requests = [Request(f"{what} of {program.name}", size, self.tick()) for what, size in program.takes if size]
            self.requests[device] += requests
            kept.append([request for request in requests if request.what.startswith("output")])
            for request in requests:
                if request.what.startswith("temporary"):
                    request.end = self.tick()
        return kept

    def _hand_over(self, traced: Any, args: Any, kwargs: Any, outputs: "list[Any]", taken: "list[list[Request]]") -> None:
        """Gives each output the memory that was taken for it, or that of a donated argument of its size."""
        import jax

        donated = [info.donated for info in jax.tree.leaves(traced.args_info, is_leaf=lambda x: hasattr(x, "donated"))]
        given = [leaf for leaf in jax.tree.leaves((args, kwargs)) if isinstance(leaf, jax.Array)]
        away: list[list[Request]] = [[] for _ in range(self.count)]
        if len(donated) == len(given):
            for leaf in {id(leaf): leaf for leaf, gone in zip(given, donated) if gone}.values():
                entry = self._live.pop(id(leaf), None)
                if entry is not None:
                    for device, request in enumerate(entry[1]):
                        if request is not None:
                            away[device].append(request)
                leaf.delete()
        for array in outputs:
            if not isinstance(array, jax.Array):
                continue
            requests: list[Optional[Request]] = [None] * self.count
            for device, size in _bytes(array):
                if device < self.count and size:
                    requests[device] = _pick(taken[device] if device < len(taken) else [], size) or _pick(away[device], size)
            self._add(array, "output", requests)
        now = self.tick()
        # Memory that was given away and that no output took, and a tuple's table.
        for request in (request for list_ in (*away, *taken) for request in list_):
            request.end = now

    def _outputs(self, traced: Any) -> Any:
        import jax

        return jax.tree.map(_hollow, traced.out_info)


def _pick(requests: "list[Request]", size: int) -> "Optional[Request]":
    """Takes the request of this size out of the list."""
    for at, request in enumerate(requests):
        if request.size == size:
            return requests.pop(at)
    return None


def _deleted(array: Any) -> bool:
    try:
        return bool(array.is_deleted())
    except Exception:
        return True


def _bytes(array: Any) -> "list[tuple[int, int]]":
    """The bytes of an array on each of its devices, by the device's number."""
    try:
        return (
            [(shard.device.id, int(shard.data.nbytes)) for shard in array.addressable_shards]
            if len(array.sharding.device_set) > 1
            else [(next(iter(array.sharding.device_set)).id, int(array.nbytes))]
        )
    except Exception:
        return []


def _signature(args: Any, kwargs: Any) -> Any:
    """The key that decides whether a call is compiled anew."""
    import jax

    leaves, tree = jax.tree.flatten((args, kwargs))

    def of_leaf(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return (leaf.shape, leaf.dtype, leaf.sharding if len(leaf.sharding.device_set) > 1 else None)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            return (tuple(leaf.shape), str(leaf.dtype))
        if isinstance(leaf, (bool, int, float, complex)):
            return type(leaf)
        return id(leaf)

    return tree, tuple(map(of_leaf, leaves))


def _hollow(info: Any) -> Any:
    """An array of zeros over pages that are never touched."""
    import jax
    import numpy as np

    sharding = getattr(info, "sharding", None)
    if jax.dtypes.issubdtype(info.dtype, jax.dtypes.extended):
        # Keys of random numbers.
        return jax.random.wrap_key_data(_hollow(jax.eval_shape(jax.random.key_data, info)), impl=jax.random.key_impl(info)) if info.shape else jax.random.key(0)
    if sharding is not None and len(sharding.device_set) > 1:
        return jax.make_array_from_callback(info.shape, sharding, lambda index: _zeros(_part(info.shape, index), info.dtype))
    return jax.device_put(_zeros(info.shape, np.dtype(info.dtype)))


def _part(shape: "tuple[int, ...]", index: "tuple[slice, ...]") -> "tuple[int, ...]":
    return tuple(len(range(*part.indices(size))) for part, size in zip(index, shape))


def _zeros(shape: "tuple[int, ...]", dtype: Any) -> Any:
    """Zeros at an address that XLA's CPU takes without a copy."""
    import numpy as np

    dtype = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + size].view(dtype).reshape(shape)


class _Jit:
    """Stands for what `jax.jit` gives: calls from the script are watched, calls while tracing are jax's own."""

    def __init__(self, watch: Watch, real: Any, function: Any) -> None:
        functools.update_wrapper(self, function)
        self._watch, self._real = watch, real
        self._name = getattr(getattr(function, "func", function), "__name__", type(function).__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not _outside():
            return self._real(*args, **kwargs)
        return self._watch.call(self._real, self._name, args, kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _outside() -> bool:
    """True if no function is being traced."""
    from jax._src import core

    return bool(core.trace_state_clean())


def install(watch: Watch) -> "Callable[[], None]":
    """Puts the watch in the place of `jax.jit`; what it returns takes it away."""
    import jax

    real = jax.jit

    def jit(function: Any = None, /, **options: Any) -> Any:
        if function is None:
            return functools.partial(jit, **options)
        return _Jit(watch, real(function, **options), function)

    jax.jit = jit

    def remove() -> None:
        jax.jit = real

    return remove
