"""Where the files for C and C++ programs are: the header and the library. See docs/others.md."""

import os

from ._errors import GaplessError

HEADER = "gapless.h"


def include_dir() -> str:
    """The folder with gapless.h, for a C compiler's -I."""
    package = os.path.dirname(os.path.abspath(__file__))
    # An installed package has it inside, a source tree beside.
    folders = [os.path.join(package, "include"), os.path.join(os.path.dirname(os.path.dirname(package)), "include")]
    for folder in folders:
        if os.path.isfile(os.path.join(folder, HEADER)):
            return folder
    raise GaplessError(f"{os.path.join(folders[0], HEADER)} is missing: this is a damaged installation; install gapless again")


def library_dir() -> str:
    """The folder with libgapless_torch.so, for a linker's -L and -rpath."""
    from ._library import path

    return os.path.dirname(path())
