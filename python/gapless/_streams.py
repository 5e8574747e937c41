"""Streams that the program made itself, told to the library: it may capture them through the driver, without a word to
torch.

The library asks these streams before it does what would end a capture. It finds out by itself about a stream that asks
for memory in its capture. Nothing is in the way of torch's own streams, whose objects are made all the time.
"""

import functools
from typing import Any

from ._library import Library

# The default streams of CUDA: the library sees their captures by itself.
_DEFAULT = (0, 1, 2)


def watch(torch: Any, library: Library) -> None:
    """Tells the library of external streams from now on."""
    if not library.has("gapless_watch_stream"):
        return

    def tell(stream: Any) -> Any:
        if stream.cuda_stream not in _DEFAULT:
            library.optional("gapless_watch_stream", stream.device_index, stream.cuda_stream)
        return stream

    kind = torch.cuda.ExternalStream
    make = kind.__new__

    def make_and_tell(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        return tell(make(cls, *arguments, **keywords))

    kind.__new__ = make_and_tell
    find = getattr(torch.cuda, "get_stream_from_external", None)
    if find is not None:

        @functools.wraps(find)
        def find_and_tell(*arguments: Any, **keywords: Any) -> Any:
            return tell(find(*arguments, **keywords))

        torch.cuda.get_stream_from_external = find_and_tell
