"""The end of a command that estimates: its exit code, and on standard error why there is no answer."""

import os
import sys
import traceback
from typing import Callable

from .._errors import GaplessError
from .shown import ascii_of, is_ascii, shown


def code(work: Callable[[], int], failed: Callable[[Exception], str]) -> int:
    """What `work` returns; 2 if it has no answer. `failed` says what an error means that is not ours."""
    try:
        return work()
    except GaplessError as error:
        return _refused(str(error))
    except BrokenPipeError:
        # The reader of the answer has closed the pipe, and standard output takes no more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        # Python would end with 1 here, which says that the program does not fit.
        if os.environ.get("GAPLESS_ESTIMATE_TELL"):
            traceback.print_exc()
        return _refused(failed(error))


def _refused(why: str) -> int:
    told = f"error: {why}"
    # Wraps lines for a terminal only: programs read whole lines.
    print(shown(told, sys.stderr) if sys.stderr.isatty() else ascii_of(told) if is_ascii(sys.stderr) else told, file=sys.stderr)
    return 2
