"""`gapless estimate --jax SCRIPT -- ARGUMENTS`: the memory of a JAX script on a card that is not there. The program
`gapless` starts this.

    python -m gapless._jax.command --device h200 --nproc 8 --format text SCRIPT -- ARGUMENTS

Exit codes: 0 it fits, 1 it does not, 2 there is no answer, and why is told on standard error.
"""

import argparse
import os
import shutil
import sys
import traceback
from typing import Optional

from .._errors import GaplessError
from .._estimate import exits
from .._estimate.cards import names
from .._estimate.shown import shown
from .estimate import SECONDS, of_script

# The folders whose frames are those of an estimate, not of the script.
_OURS = (os.path.dirname(__file__), os.path.dirname(exits.__file__))


def main(words: "Optional[list[str]]" = None) -> int:
    return exits.code(lambda: _main(sys.argv[1:] if words is None else words), _failed)


def _failed(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    first = str(error).partition("\n")[0]
    return f"the script failed: {type(error).__name__}: {first}{where}; GAPLESS_ESTIMATE_TELL=1 prints where"


def _main(words: "list[str]") -> int:
    parser = argparse.ArgumentParser(prog="gapless estimate --jax", description="The memory of a JAX script on a card, without a card.")
    parser.add_argument("--device", default="h200", help=f"the card: {', '.join(names())}")
    parser.add_argument("--nproc", type=int, default=1, help="devices that the script sees")
    parser.add_argument("--steps", type=int, help="stop after this many calls of compiled functions")
    parser.add_argument("--time-limit", type=float, default=SECONDS, metavar="SECONDS", help="seconds that the script may take")
    parser.add_argument("--until-stable", action="store_true", help="without a limit of time")
    parser.add_argument("--format", default="text", choices=("text", "json", "html"))
    parser.add_argument("--save", metavar="FILE", help="write the requests: a CSV that report and replay read")
    parser.add_argument("--dumps", metavar="FOLDER", help="keep XLA's dumps of the compiled programs, for report")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    if asked.format == "html":
        raise GaplessError("--format html is for PyTorch: save the programs with --dumps FOLDER and run `gapless report FOLDER --open`")
    if not os.path.isfile(asked.script):
        raise GaplessError(f"{asked.script}: no such file; name a Python script, as in `gapless estimate --jax train.py -- --batch 8`")
    rest = asked.arguments[1:] if asked.arguments[:1] == ["--"] else asked.arguments
    limit = None if asked.until_stable else asked.time_limit
    answer = of_script([asked.script, *rest], asked.device, asked.nproc, limit, asked.steps)
    if asked.save:
        answer.save(asked.save)
    if asked.dumps:
        os.makedirs(asked.dumps, exist_ok=True)
        for dump in answer.dumps:
            shutil.copy(dump, asked.dumps)
    for dump in answer.dumps[:1]:
        shutil.rmtree(os.path.dirname(dump), ignore_errors=True)
    print(answer.dumps_json() if asked.format == "json" else shown(answer.text, sys.stdout), flush=True)
    return 0 if answer.fits else 1


if __name__ == "__main__":
    sys.exit(main())
