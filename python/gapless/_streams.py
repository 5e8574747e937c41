"""Streams that the program made itself, told to the library: it may capture them through the driver, without a word to
torch.

The library then does nothing any more that would end such a capture. Nothing is in the way of torch's own streams,
whose objects are made all the time.
"""

import functools
import sys
from typing import Any

from ._library import Library

# The default streams of CUDA: the library sees their captures by itself.
_DEFAULT = (0, 1, 2)


def watch(torch: Any, library: Library) -> None:
    """Tells the library when the program names a stream of its own."""
    if not library.has("gapless_note_stream"):
        return

    def tell(stream: Any) -> Any:
        # Of a stream that torch did not make, this is the driver's handle.
        if stream.stream_id not in _DEFAULT:
            library.optional("gapless_note_stream")
        return stream

    kind = torch.cuda.ExternalStream
    make = kind.__new__

    def make_and_tell(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        stream = make(cls, *arguments, **keywords)
        # torch itself makes one in `__dlpack__`, for the stream that the other library reads on.
        return stream if sys._getframe(1).f_globals.get("__name__") == "torch._tensor" else tell(stream)

    kind.__new__ = make_and_tell
    find = getattr(torch.cuda, "get_stream_from_external", None)
    if find is not None:

        @functools.wraps(find)
        def find_and_tell(*arguments: Any, **keywords: Any) -> Any:
            return tell(find(*arguments, **keywords))

        torch.cuda.get_stream_from_external = find_and_tell
