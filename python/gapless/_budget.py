"""Budgets: limits of what a part of the program allocates, and this process's place among others that share a card.

    with gapless.budget("8GiB", tag="eval"):    # what any thread allocates here is charged to "eval" until it is freed
        evaluate(model)

    gapless.tenant("a", limit="60%", borrow=True)  # this process shares its cards with others of the same user

The counting is the library's; see docs/budgets.md for what is counted, and when.
"""

import atexit
import functools
import inspect
import re
from typing import Any, Callable, TypeVar, Union, cast

from . import _forks, _options, _session
from ._errors import GaplessError, OptionError

_ended = False
_Function = TypeVar("_Function", bound=Callable[..., Any])


class budget:
    """Limits what the program allocates in a scope: `with gapless.budget("8GiB", tag="eval"):`, or as a decorator.

    limit   the most bytes that may be charged to the tag at once. A request beyond it raises torch.OutOfMemoryError,
            which names the tag
    tag     the name in gapless.stats(): "gapless.budgets.eval.live", and peak, limit, soft, pressed, refused
    soft    a lower limit. If it is passed, Gapless gives unused memory back to the card and refuses nothing
    device  the card; None limits each card by itself

    A scope belongs to the process, not to a thread, because backward passes run in other threads. Gapless charges a
    request to the newest open scope. The charge ends when the memory is freed, inside or outside of the scope. You can
    enter one object many times.
    """

    def __init__(self, limit: Union[int, str], tag: str = "default", soft: Union[int, str, None] = None, device: Any = None) -> None:
        self.limit = _bytes("limit", limit)
        self.soft = None if soft is None else _bytes("soft", soft)
        if self.soft is not None and self.soft > self.limit:
            raise OptionError(f"soft={soft} is above limit={limit}: a soft limit comes first")
        if not isinstance(tag, str) or not re.fullmatch(r"[A-Za-z0-9_/-]{1,63}", tag):
            raise OptionError(f"tag={tag!r} is not 1 to 63 letters, digits, _ - or /")
        self.tag = tag
        self.device = device
        self._tokens: list[int] = []
        self._lock = _forks.lock()

    def __repr__(self) -> str:
        return f"gapless.budget({self.limit}, tag={self.tag!r}, soft={self.soft}, device={self.device!r})"

    def __enter__(self) -> "budget":
        library = _session._on()
        index = -1 if self.device is None else _session._index(self.device)
        token = library.optional("gapless_budget_open", self.tag.encode(), self.limit, self.soft or 0, index)
        if token < 0:
            raise GaplessError(library.last_error())
        with self._lock:
            self._tokens.append(token)
        return self

    def __exit__(self, *_: Any) -> None:
        with self._lock:
            token = self._tokens.pop()
        _session._on().optional("gapless_budget_close", token)

    def __call__(self, function: _Function) -> _Function:
        """Makes a function run in the scope. A generator function is refused, because its steps would run outside of
        it."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise OptionError(f"{function.__name__} is a generator: open the budget inside of it")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def inside(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

        else:

            @functools.wraps(function)
            def inside(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        # functools.wraps keeps the name, and the arguments go through as they are.
        return cast(_Function, inside)


def tenant(name: str, limit: Union[int, str], borrow: bool = False) -> None:
    """Makes this process part of a tenant. Tenants are groups of one user's processes that share cards. Each has a
    share of each card.

    limit   the share, "30GiB" or "60%", of everything that the tenant's processes hold of a card
    borrow  whether the tenant may take more while no other one needs it

    Gapless refuses shares that add up to more than the card. Call it before or after CUDA starts. A process that is
    killed gives its share back.
    """
    share = _options.parse_tenant(f"{name}:{limit}:borrow" if borrow else f"{name}:{limit}")
    become(_session._on(), share)


def become(library: Any, share: str) -> None:
    if library.optional("gapless_tenant", share.encode()) != 0:
        raise GaplessError(f"tenant {share.split(':')[0]!r}: {library.last_error()}")
    end_with_process(library)


def end_with_process(library: Any) -> None:
    """Ends the library's rounds, four a second, before CUDA shuts down."""
    global _ended
    if not _ended and library.has("gapless_ration_end"):
        _ended = True
        atexit.register(library.optional, "gapless_ration_end")


def _bytes(name: str, value: Union[int, str]) -> int:
    try:
        return _options.positive_bytes(value)
    except ValueError as error:
        raise OptionError(f"{name}={value} is not {error}") from None
