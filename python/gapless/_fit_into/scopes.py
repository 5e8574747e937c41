"""Counts the program's calls by the module that they happen in, so that an operator more in one block does not move the
numbers in the next.

A scope is the model, or a member of a list of modules in it (a block). A call's key is (forward of the step, scope's
path, how often the scope was entered, number of the call in the scope).
"""

from typing import Any

import torch


class Frame:
    """One entry of a scope: the number of its next call, and what is planned in it."""

    __slots__ = ("has_mode", "key", "n", "plans")

    def __init__(self, key: tuple[Any, ...], plans: Any) -> None:
        self.key, self.n, self.plans, self.has_mode = key, 0, plans, False


class Frames:
    """The scopes that are entered now."""

    def __init__(self) -> None:
        self.forward = 0
        self.stack: list[Frame] = []
        self.plans: dict[tuple[Any, ...], Any] = {}
        # Hears which scope is entered now.
        self.listener: Any = None
        self._times: dict[str, int] = {}

    def begin(self, forward: int, plans: dict[tuple[Any, ...], Any], listener: Any = None) -> None:
        """A forward of the model begins; `plans` has what is planned in each scope, by call."""
        self.forward, self.plans, self.listener = forward, plans, listener
        self.stack.clear()
        self._times.clear()

    def enter(self, path: str) -> None:
        times = self._times.get(path, 0)
        self._times[path] = times + 1
        key = (self.forward, path, times)
        frame = Frame(key, self.plans.get(key, {}))
        self.stack.append(frame)
        if self.listener is not None:
            self.listener.enter(frame)

    def leave(self, path: str) -> None:
        """Leaves a scope, and those within it that an exception left open."""
        while self.stack:
            frame = self.stack.pop()
            if self.listener is not None:
                self.listener.leave(frame, self.stack[-1] if self.stack else None)
            if frame.key[1] == path:
                return

    def count(self) -> tuple[Any, ...]:
        frame = self.stack[-1]
        frame.n += 1
        return (*frame.key, frame.n - 1)


def blocks_of(model: Any) -> dict[str, Any]:
    """Members of the outermost lists of modules, by path."""
    found: dict[str, Any] = {}

    def look(module: Any, path: str) -> None:
        for name, child in module.named_children():
            below = f"{path}.{name}" if path else name
            if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and len(module) > 1 and path:
                found[below] = child
            else:
                look(child, below)

    look(model, "")
    return found
