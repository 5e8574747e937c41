"""`gapless estimate SCRIPT -- ARGUMENTS`: the memory of a whole script, unchanged. The program `gapless` starts this.

    python -m gapless._estimate.command --device h200 --steps 3 --format text SCRIPT -- ARGUMENTS

Exit codes: 0 it fits, 1 it does not, 2 an error, told on standard error.
"""

import argparse
import os
import sys
from typing import Any, NoReturn, Optional

from .._errors import GaplessError
from .api import run
from .cards import card, names
from .ranks import run_ranks


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise GaplessError(f"{message}: `gapless estimate --help` shows how it is used")


def main(words: "Optional[list[str]]" = None) -> int:
    try:
        return _main(sys.argv[1:] if words is None else words)
    except GaplessError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _main(words: "list[str]") -> int:
    parser = _Parser(prog="gapless estimate", description="The memory of a PyTorch script on a card, without a card.")
    parser.add_argument("--device", default="h200", help=f"the card: {', '.join(names())}")
    parser.add_argument("--steps", type=int, default=3, help="steps of the optimizer to run")
    parser.add_argument("--nproc", type=int, default=1, help="processes, one a rank")
    parser.add_argument("--format", default="text", choices=("text", "json", "html"))
    parser.add_argument("--save", metavar="FILE", help="write torch's snapshot of the run")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    if asked.steps < 1 or asked.nproc < 1:
        raise GaplessError("--steps and --nproc are whole numbers from 1 on")
    if not os.path.isfile(asked.script):
        raise GaplessError(f"{asked.script}: no such file; name a Python script, as in `gapless estimate train.py -- --batch 8`")
    if asked.save and not os.path.isdir(os.path.dirname(os.path.abspath(asked.save))):
        raise GaplessError(f"--save {asked.save}: its folder does not exist")
    rest = asked.arguments[1:] if asked.arguments[:1] == ["--"] else asked.arguments
    job = {"kind": "script", "arguments": [asked.script, *rest], "steps": asked.steps}
    kind = card(asked.device)
    answer: Any = run(job, kind) if asked.nproc == 1 else run_ranks(job, kind, asked.nproc)
    if asked.save:
        answer.save(asked.save)
    print({"json": answer.dumps, "html": answer.html, "text": lambda: answer.text}[asked.format]())
    return 0 if answer.fits else 1


if __name__ == "__main__":
    sys.exit(main())
