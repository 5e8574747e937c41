"""The memory pool of vLLM's sleep mode over Gapless's regions.

    from gapless.integrations.vllm import CuMemAllocator

It has the methods of vLLM's own class of this name. vLLM works without it too: its own allocator for memory pools runs
above Gapless. With it, sleeping memory is copied in large pieces, and its pool does not grow.
"""

import contextlib
import re
from collections.abc import Iterator
from typing import Optional, Union

from .. import _regions
from .._errors import OptionError

_PREFIX = "vllm"


class CuMemAllocator:
    """One for the process: `CuMemAllocator.get_instance()`."""

    default_tag = "default"
    _instance: Optional["CuMemAllocator"] = None

    @staticmethod
    def get_instance() -> "CuMemAllocator":
        if CuMemAllocator._instance is None:
            CuMemAllocator._instance = CuMemAllocator()
        return CuMemAllocator._instance

    def _name(self, tag: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,50}", tag):
            raise OptionError(f"invalid tag {tag!r}: write 1 to 50 letters, digits, _ or -")
        return f"{_PREFIX}/{tag}"

    @contextlib.contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """Memory that is allocated in it sleeps and wakes with its tag."""
        with _regions.region(self._name(tag or self.default_tag)):
            yield

    def _regions(self, tags: Optional[list[str]]) -> list[_regions.Region]:
        wanted = None if tags is None else {self._name(tag) for tag in tags}
        return [found for found in _regions.regions() if found.name.startswith(_PREFIX + "/") and (wanted is None or found.name in wanted)]

    def sleep(self, offload_tags: Union[tuple[str, ...], str, None] = None) -> None:
        """All memory goes back to the card. Of the tags that are named, the bytes are kept on the host; of all others
        they are lost."""
        named = (self.default_tag,) if offload_tags is None else (offload_tags,) if isinstance(offload_tags, str) else offload_tags
        kept = {self._name(tag) for tag in named}
        for found in self._regions(None):
            if found.live and not found.asleep:
                # vLLM names the kept tags at each sleep, and a region gets its `keep` when it is opened.
                with _regions.region(found.name, keep="host" if found.name in kept else "discard"):
                    pass
                _regions.sleep(found.name, guard=False)

    def wake_up(self, tags: Optional[list[str]] = None) -> None:
        """The memory of these tags, or of all, is there again."""
        for found in self._regions(tags):
            if found.asleep:
                _regions.wake(found.name)

    def get_current_usage(self) -> int:
        """Bytes of the card that the pools hold."""
        return sum(found.held for found in self._regions(None))
