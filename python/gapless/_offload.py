"""gapless.offload(): saved activations leave the device when the budget would be exceeded, and are back before
backward needs them.

    with gapless.offload(activations=True, min_size="1MiB"):
        loss = model(x)
    loss.backward()

The scope chooses among the tensors that autograd saves; backward may run inside or outside. The profiles of a program's
steps outlive the scope, so a scope around each step works as well as one around all of them.
"""

import atexit
import sys
import time
import weakref
from typing import Any, Union

from . import _forks, _options
from ._errors import OptionError

# Reentrant: a finalizer or a signal handler may run in the same thread while it holds the lock.
_lock = _forks.lock()
# By device and arguments: a second scope with the same arguments continues with the first one's profiles.
_keepers: dict[tuple[int, Any], Any] = {}
_handler: Any = None
# The hooks that torch was given. A reference is dead once torch has let go of its hook.
_given: list["weakref.ref[Any]"] = []
_waits = False


class Offload:
    """A scope; it can be entered again and again, also while it is entered."""

    def __init__(
        self,
        activations: bool = True,
        min_size: Union[int, str] = "1MiB",
        budget: Union[int, str, None] = None,
        host_limit: Union[int, str, None] = None,
        device: Any = None,
        in_flight: Union[int, str, None] = None,
    ) -> None:
        self._is_on = bool(activations)
        self._min_size = _bytes("min_size", min_size)
        self._budget, self._host_limit, self._in_flight = (
            None if value is None else _bytes(name, value) for name, value in (("budget", budget), ("host_limit", host_limit), ("in_flight", in_flight))
        )
        for name, value in (("budget", self._budget), ("host_limit", self._host_limit)):
            if value == 0:
                raise OptionError(f"{name}=0 leaves nothing: give a number of bytes such as 60GiB, or leave it out")
        self._device = device
        self._scopes: list[Any] = []
        self._own: dict[int, Any] = {}

    def __enter__(self) -> "Offload":
        if self._is_on:
            torch = self._prepare()
            pack = self._pack
            _outlive(pack)
            scope = torch.autograd.graph.saved_tensors_hooks(pack, _unpack)
            scope.__enter__()
            self._scopes.append(scope)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._is_on:
            self._scopes.pop().__exit__(*error)

    def stats(self) -> dict[str, int]:
        """Tensors and bytes that scopes with these arguments moved, and what the host pool holds."""
        return _sum(self._own.values())

    def _prepare(self) -> Any:
        """What `_pack` needs. Returns torch."""
        from . import _torch

        torch = _torch.import_torch()
        self._plain = _plain_test(torch)
        self._only = None if self._device is None else torch.device(self._device if not isinstance(self._device, int) else f"cuda:{self._device}")
        return torch

    def _pack(self, tensor: Any) -> Any:
        from ._offload_keeper import Kept

        keeper = self._keeper(tensor) if self._plain(tensor) else None
        return Kept(tensor) if keeper is None else keeper.pack(tensor)

    def _keeper(self, tensor: Any) -> Any:
        device = tensor.device
        if device.type != "cuda" or (self._only is not None and self._only.index not in (None, device.index)):
            return None
        keeper = self._own.get(device.index)
        if keeper is None:
            keeper = self._own[device.index] = self._find(device.index)
        return keeper

    def _find(self, device: int) -> Any:
        kind = (device, (self._min_size, self._budget, self._host_limit, self._in_flight))
        with _lock:
            if kind not in _keepers:
                from . import _session, _torch
                from ._library import Library, path
                from ._offload_cuda import CudaTransfer
                from ._offload_keeper import Keeper

                library = _session._library or Library(path())
                transfer = CudaTransfer(_torch.import_torch(), library, device, _session._library is not None, self._host_limit)
                keeper = Keeper(transfer, self._min_size, self._budget, self._in_flight)
                keeper.is_asked = _listen() and _session._library is not None
                _keepers.setdefault(kind, keeper)
            return _keepers[kind]


def offload(
    activations: bool = True,
    min_size: Union[int, str] = "1MiB",
    budget: Union[int, str, None] = None,
    host_limit: Union[int, str, None] = None,
    device: Any = None,
    in_flight: Union[int, str, None] = None,
) -> Offload:
    """Opens a scope in which tensors that autograd saves move to pinned host memory, if the device would exceed its
    budget.

    activations  False: the scope does nothing
    min_size     smaller tensors stay on the device
    budget       the most that the device may hold. By default the allocator's limit, or the device's memory
    host_limit   the most host memory to pin
    device       only tensors of this device
    in_flight    room for copies under way. By default 1 GiB or a sixteenth of the budget, whichever is smaller

    While everything fits, nothing moves. Losses and gradients are bit for bit the same. docs/offload.md describes what
    moves when.
    """
    return Offload(activations, min_size, budget, host_limit, device, in_flight)


def stats_of(device: int) -> dict[str, int]:
    """For gapless.stats(): all scopes' figures of a device."""
    return {f"gapless.offload.{name}": value for name, value in _sum(keeper for (at, _), keeper in list(_keepers.items()) if at == device).items()}


def trim() -> None:
    """Unpins host memory that nothing uses."""
    for keeper in list(_keepers.values()):
        keeper.stats()
        keeper.transfer._library.optional("gapless_host_trim")


def _outlive(pack: Any) -> None:
    """Autograd's threads let go of a scope a moment after backward. If the interpreter ended before, torch would end
    the process, so exit waits for them."""
    global _waits
    if not _waits:
        _waits = True
        atexit.register(_wait)
    _given[:] = [given for given in _given if given() is not None]
    _given.append(weakref.ref(pack))


def _wait() -> None:
    end = time.monotonic() + 1
    while any(given() is not None for given in _given) and time.monotonic() < end:
        time.sleep(0.001)


def _unpack(saved: Any) -> Any:
    return saved.unpack()


def _sum(keepers: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for keeper in keepers:
        for name, value in keeper.stats().items():
            total[name] = total.get(name, 0) + value
        # All keepers share one host pool, so its figures are not added up.
        total.update(keeper.transfer.host_stats())
    return total


def _listen() -> bool:
    """Makes the allocator ask the keepers before it fails a request, as the last resort. True if it will."""
    global _handler
    package = sys.modules[__package__]
    if _handler is None and hasattr(package, "on_pressure"):
        _handler = package.on_pressure(_pressed) or _pressed
    return _handler is not None


def _pressed(pressure: Any) -> int:
    """Moves tensors until the missing bytes are free. Returns the bytes that were freed."""
    missing = getattr(pressure, "missing", 0) or getattr(pressure, "requested", 0)
    freed = 0
    for (device, _), keeper in list(_keepers.items()):
        if device == getattr(pressure, "device", device) and freed < missing:
            freed += keeper.pressed(missing - freed)
    return freed


def _plain_test(torch: Any) -> Any:
    """A function that is true for tensors that can be moved as bytes and built again: no subclass (parameters are one),
    no other layout, no leaf that collects gradients, nothing that a transform wraps."""
    is_wrapped = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", lambda tensor: False)
    is_compiling = torch.compiler.is_compiling

    def is_plain(tensor: Any) -> bool:
        return (
            type(tensor) is torch.Tensor
            and tensor.layout is torch.strided
            and not (tensor.is_leaf and tensor.requires_grad)
            and not tensor.is_quantized
            and not tensor.is_conj()
            and not tensor.is_neg()
            and not is_wrapped(tensor)
            and not is_compiling()
        )

    return is_plain


def _bytes(name: str, value: Any) -> int:
    try:
        return _options.parse_bytes(value)
    except ValueError as error:
        raise OptionError(f"{name}={value} is not {error}") from None
