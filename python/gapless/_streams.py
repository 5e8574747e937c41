"""Streams that the program may capture through the driver, without a word to torch, told to the library: those that the
program made itself, and those of torch's own whose handle it reads.

The library makes no fences once the program has a stream of its own, since a fence would end a capture of it. Torch's
own streams are never destroyed, so the library asks them before each fence. Nothing is in the way of the objects of
torch's streams, which are made all the time: a program that captures one through the driver reads its handle first.
"""

import functools
import sys
from typing import Any

from ._library import Library

# The default streams of CUDA: the library sees their captures by itself.
_DEFAULT = (0, 1, 2)


def watch(torch: Any, library: Library) -> None:
    """Tells the library when the program names a stream of its own, or reads the handle of one of torch's."""
    _watch_made(torch, library)
    _watch_handles(torch, library)


# What a stream's handle is called: in torch.cuda, and for streams of any kind of device.
_HANDLES = ("cuda_stream", "native_handle")


def _watch_handles(torch: Any, library: Library) -> None:
    if not library.has("gapless_note_handle"):
        return
    known: set[int] = set()
    for name in _HANDLES:
        read = getattr(torch._C._CudaStreamBase, name, None)
        if read is not None and name not in vars(torch.cuda.Stream):
            setattr(torch.cuda.Stream, name, _told(read, known, library))


def _told(read: Any, known: set[int], library: Library) -> property:
    """The property behind `read`; the library hears of handles of torch's own streams."""

    def read_and_tell(stream: Any) -> int:
        handle: int = read.__get__(stream)
        # Numbers of torch's own streams are odd; another stream's is its handle.
        if handle not in known and stream.stream_id % 2:
            library.optional("gapless_note_handle", stream.device_index, handle)
            known.add(handle)
        return handle

    return property(read_and_tell, doc=read.__doc__)


def _watch_made(torch: Any, library: Library) -> None:
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
