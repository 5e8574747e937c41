"""The flight recorder: enable(record="run.gtrace") or GAPLESS_RECORD.

The library records; this file says where to. Each process has a file of its own: of a run with ranks each puts its
rank into the name, and a process that another recorded one started its number.
"""

import atexit
import os
import sys
from collections.abc import Mapping
from typing import Any, Optional

from ._errors import OptionError
from ._library import Library

# Set for child processes: this process has taken the name without a number.
_TAKEN = "GAPLESS_RECORD_OWNER"

_library: Optional[Library] = None


def file_of(path: str, environ: Mapping[str, str], pid: int) -> str:
    """The file of this process: run.gtrace, run.rank3.gtrace or run.4711.gtrace."""
    rank = environ.get("RANK")
    if rank is not None and rank.isdigit() and environ.get("WORLD_SIZE", "1") != "1":
        mark = f".rank{rank}"
    elif environ.get(_TAKEN, str(pid)) != str(pid):
        mark = f".{pid}"
    else:
        return path
    stem, extension = os.path.splitext(path)
    return stem + mark + extension


def start(library: Library, chosen: dict[str, Any]) -> None:
    """Records from now on. Before torch's CUDA starts."""
    global _library
    pid = os.getpid()
    path = os.path.abspath(file_of(chosen["record"], os.environ, pid))
    folder = os.path.dirname(path)
    if os.path.isdir(path) or not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise OptionError(f"record={path} cannot be written: name a file in a folder that is there and may be written to")
    stacks = chosen.get("record_stacks") == "python"
    if library.optional("gapless_record", os.fsencode(path), int(stacks), chosen.get("record_limit", 0)) != 0:
        raise OptionError(library.last_error())
    os.environ.setdefault(_TAKEN, str(pid))
    _library = library
    atexit.register(_end, path, pid)


def _end(path: str, owner: int) -> None:
    if os.getpid() != owner or _library is None:
        return
    modules = sys.modules.get(f"{__package__}._module_blocks")
    if modules is not None:
        modules.tell_recorder()
    lost = _library.optional("gapless_record_end")
    if lost:
        try:
            print(f"gapless: {lost} events are missing in {path}: they came faster than they could be written", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            pass
