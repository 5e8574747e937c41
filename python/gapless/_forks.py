"""Locks that a forked child never waits for: the thread of its parent that held one is not in the child.

The native library's locks are of their own kind (crates/gapless-cuda/src/locks)."""

import os
import threading
import weakref
from typing import Any

_all: "weakref.WeakSet[Any]" = weakref.WeakSet()


def lock() -> Any:
    """A lock that its own thread may take again: finalizers and signal handlers come back in the middle."""
    made = threading.RLock()
    _all.add(made)
    return made


def _open() -> None:
    for held in list(_all):
        # The thread that forked may have it, and opens it itself.
        if not held._is_owned():
            held._at_fork_reinit()


os.register_at_fork(after_in_child=_open)
