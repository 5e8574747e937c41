"""transformers' generate() compiles the whole forward pass when its cache has a fixed size, and records CUDA graphs of
it. Streamed weights move, so each token would record again: a run that hardly ends. A streamed model generates without;
blocks that the program compiled itself (`block.compile()`) stay compiled."""

import functools
import sys
from typing import Any

from . import calls

_NAME = "_valid_auto_compile_criteria"


def look() -> None:
    """Called when a model is streamed. A model of transformers has loaded its module by then."""
    kind: Any = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
    original = getattr(kind, _NAME, None)
    if original is None or getattr(original, "knows_streams", False):
        return

    @functools.wraps(original)
    def criteria(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Looked up with each call of generate(): the stream may have ended.
        return False if calls.place_of(self) is not None else original(self, *args, **kwargs)

    criteria.knows_streams = True  # type: ignore[attr-defined]
    setattr(kind, _NAME, criteria)
