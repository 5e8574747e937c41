"""Memory of the card that other libraries hold while nothing uses it: NCCL's communicators and cuBLAS's workspaces.

Idle communicators hold gigabytes for each rank. NCCL 2.29.7 and later can give that memory back and keep the
communicator (ncclCommSuspend). cuBLAS's workspaces are tensors of torch, which makes new ones when they are needed.
"""

from dataclasses import dataclass
from typing import Any, Optional

from . import _session
from ._errors import GaplessError

# NCCL_SUSPEND_MEM of nccl.h.
_MEMORY = 1
# Communicators that sleep: their addresses, and the objects that keep them.
_suspended: list[tuple[int, Any]] = []


@dataclass(frozen=True)
class Suspended:
    """The memory that suspend_others() gave back."""

    communicators: int
    """Communicators of NCCL that gave their memory back."""
    nccl_bytes: int
    """Bytes that the card had free afterwards, more than before."""
    cublas_bytes: int
    """Bytes of cuBLAS's workspaces."""
    notes: tuple[str, ...] = ()
    """Memory that could not be suspended, and why."""

    def __str__(self) -> str:
        text = f"NCCL: {self.nccl_bytes / 2**20:.0f} MiB of {self.communicators} communicators, cuBLAS: {self.cublas_bytes / 2**20:.0f} MiB"
        return "; ".join([text, *self.notes])


def suspend_others(device: Any = None) -> Suspended:
    """Gives back the memory of a card that NCCL's communicators and cuBLAS's workspaces hold, while nothing uses them.

    It waits for the queued work of the card. Every rank of a group must call it, because NCCL's ranks wait for each
    other. Call resume_others() before the next collective. torch makes new workspaces when it needs them. A CUDA graph
    that was captured with a workspace keeps that workspace.
    """
    import ctypes

    from . import _torch

    torch = _torch.import_torch()
    library = _session._on()
    torch.cuda.synchronize(device)
    notes: list[str] = []
    before = torch.cuda.memory_allocated(device)
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is None:
        notes.append("this torch has no function that frees cuBLAS's workspaces")
    else:
        clear()
    cublas = before - torch.cuda.memory_allocated(device)
    library.trim(_session._index(device))
    free = torch.cuda.mem_get_info(device)[0]
    found = _communicators(torch, device)
    nccl = _nccl() if found else None
    done = 0
    if found and not hasattr(nccl, "ncclCommSuspend"):
        notes.append(f"{len(found)} communicators keep their memory: the NCCL that is loaded has no ncclCommSuspend (2.29.7 and later have it)")
    elif nccl is not None:
        known = {address for address, _ in _suspended}
        for address, keeper in found:
            if address in known:
                continue
            code = nccl.ncclCommSuspend(ctypes.c_void_p(address), ctypes.c_int(_MEMORY))
            if code == 0:
                _suspended.append((address, keeper))
                done += 1
            else:
                notes.append(f"a communicator keeps its memory: ncclCommSuspend failed with {code}")
    back = max(0, torch.cuda.mem_get_info(device)[0] - free) if done else 0
    return Suspended(done, back, cublas, tuple(notes))


def resume_others() -> int:
    """Gives the communicators that suspend_others() suspended their memory again, and returns their number. Every rank
    must call it."""
    import ctypes

    nccl = _nccl() if _suspended else None
    count = 0
    while _suspended:
        address, keeper = _suspended[-1]
        assert nccl is not None
        code = nccl.ncclCommResume(ctypes.c_void_p(address))
        if code != 0:
            raise GaplessError(
                f"ncclCommResume failed with {code}; {len(_suspended)} communicators are still suspended: free memory of the card and call it again"
            )
        _suspended.pop()
        del keeper
        count += 1
    return count


def _nccl() -> Optional[Any]:
    """The library that torch has loaded."""
    import ctypes

    try:
        return ctypes.CDLL("libnccl.so.2")
    except OSError:
        return None


def _communicators(torch: Any, device: Any) -> list[tuple[int, Any]]:
    """Every communicator of this process for a card: its address, and the group that keeps it."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return []
    found: dict[int, Any] = {}
    on = torch.device("cuda", _session._index(device))
    for group in list(distributed.distributed_c10d._world.pg_map):
        try:
            address = group._get_backend(on)._comm_ptr()
        except (RuntimeError, AttributeError):
            # Another backend, or one that has not connected yet.
            continue
        if address:
            found[int(address)] = group
    return list(found.items())
