"""Locks that are open in a forked child: the parent's thread that held one does not exist there to release it.

The native library's locks are of their own kind (crates/gapless-cuda/src/locks)."""

import os
import threading
import weakref
from typing import Any

_all: "weakref.WeakSet[Any]" = weakref.WeakSet()


def lock() -> Any:
    """A reentrant lock, because a finalizer or a signal handler may take it in the thread that holds it."""
    made = threading.RLock()
    _all.add(made)
    return made


def _open() -> None:
    for held in list(_all):
        # The thread that forked may hold it. That thread lives on in the child, and releases it.
        if not held._is_owned():
            held._at_fork_reinit()


os.register_at_fork(after_in_child=_open)
