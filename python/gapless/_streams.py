"""Streams that the program has, told to the library: it may capture them through the driver, without a word to torch.

The library asks these streams before it does what would end a capture. A stream is known from the moment on in which
torch makes an object for it (torch.cuda.Stream, ExternalStream, current_stream()).
"""

from typing import Any

from ._library import Library

# The default streams of CUDA: the library sees their captures by itself.
_DEFAULT = (0, 1, 2)


def watch(torch: Any, library: Library) -> None:
    """Tells the library of streams from now on."""
    if not library.has("gapless_watch_stream"):
        return
    kind, known = torch.cuda.Stream, set()
    make = kind.__new__

    def make_and_tell(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        made = make(cls, *arguments, **keywords)
        handle = made.cuda_stream
        if handle not in known and handle not in _DEFAULT:
            # An external stream has no number but its handle. The program may destroy it.
            lasts = made.stream_id != handle
            library.optional("gapless_watch_stream", made.device_index, handle, lasts)
            known.add(handle)
        return made

    kind.__new__ = make_and_tell
