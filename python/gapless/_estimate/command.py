"""`gapless estimate SCRIPT -- ARGUMENTS`: the memory of a whole script, unchanged; `gapless estimate CONFIG`: that of a
model of transformers or diffusers, from its configuration. The program `gapless` starts this.

    python -m gapless._estimate.command --device h200 --steps 3 --format text SCRIPT -- ARGUMENTS
    python -m gapless._estimate.command --device h200 --steps 3 --format text --batch 8 config.json

Exit codes: 0 it fits, 1 it does not, 2 there is no answer, and why is told on standard error.
"""

import argparse
import os
import sys
from typing import Any, NoReturn, Optional

from .._errors import GaplessError
from .._options import positive_bytes
from . import exits
from .api import run
from .assumed import parse
from .cards import card, names
from .configured import ATTENTION, CHECKPOINTING, Settings, is_configuration
from .optimizers import NAMES as OPTIMIZERS
from .pace import SECONDS
from .ranks import run_ranks
from .shown import shown
from .sizes import Sizes
from .steps import PRECISIONS, STEPS

# Flags that describe the run of a configuration, by the words of `gapless fit`: name, type, what they are.
_OF_CONFIGURATIONS: "tuple[tuple[str, Any, str], ...]" = (
    ("--batch", int, "samples of a forward pass"),
    ("--seq", int, "tokens of a sequence"),
    ("--image", int, "pixels a side"),
    ("--seconds", float, "seconds of a sound"),
    ("--precision", str, "what weights are kept in and products computed in"),
    ("--optimizer", str, "what updates the weights"),
    ("--checkpointing", str, "what is run again in the backward pass"),
    ("--attention", str, "how attention is computed"),
    ("--grad-accum", int, "passes before each step of the optimizer"),
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise GaplessError(f"{message}: `gapless estimate --help` shows how it is used")


def main(words: "Optional[list[str]]" = None) -> int:
    return exits.code(lambda: _main(sys.argv[1:] if words is None else words), _failed)


def _failed(error: Exception) -> str:
    return f"no answer: {type(error).__name__}: {error}\n  This is an error of gapless itself: GAPLESS_ESTIMATE_TELL=1 prints where."


def _main(words: "list[str]") -> int:
    parser = _Parser(prog="gapless estimate", description="The memory of a PyTorch script on a card, without a card.")
    parser.add_argument("--device", default="h200", help=f"the card: {', '.join(names())}")
    parser.add_argument("--steps", type=int, help="steps of the optimizer to run")
    parser.add_argument("--until-stable", action="store_true", help="without a limit of time")
    parser.add_argument("--time-limit", type=float, default=SECONDS, metavar="SECONDS", help="seconds that steps may take")
    parser.add_argument("--assume", action="append", default=[], metavar="FILE:LINE=VALUE", help="what the program reads there")
    parser.add_argument("--train-in", metavar="SIZE", help="the models of a script train within this much, by gapless.fit_into")
    parser.add_argument("--nproc", type=int, default=1, help="processes, one a rank")
    parser.add_argument("--format", default="text", choices=("text", "json", "html"))
    parser.add_argument("--save", metavar="FILE", help="write torch's snapshot of the run")
    for flag, kind, told in _OF_CONFIGURATIONS:
        parser.add_argument(flag, type=kind, help=f"of a configuration: {told}")
    parser.add_argument("--infer", action="store_true", help="of a configuration: forward passes alone")
    parser.add_argument("--text", help=argparse.SUPPRESS)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    if (asked.steps is not None and asked.steps < 1) or asked.nproc < 1:
        raise GaplessError("--steps and --nproc are whole numbers from 1 on")
    if asked.steps is not None and asked.until_stable:
        raise GaplessError("--steps says when to stop, and so does --until-stable: leave one of them out")
    if not asked.time_limit > 0:
        raise GaplessError(f"invalid --time-limit {asked.time_limit:g}: give seconds above 0, such as --time-limit 120")
    assume = [parse(text) for text in asked.assume]
    configuration = asked.text is not None or is_configuration(asked.script)
    if not configuration and not os.path.isfile(asked.script):
        raise GaplessError(f"{asked.script}: no such file; name a Python script, as in `gapless estimate train.py -- --batch 8`, or a config.json")
    if asked.save and not os.path.isdir(os.path.dirname(os.path.abspath(asked.save))):
        raise GaplessError(f"--save {asked.save}: its folder does not exist")
    rest = asked.arguments[1:] if asked.arguments[:1] == ["--"] else asked.arguments
    budget = _budget(asked) if asked.train_in is not None else None
    if configuration:
        job = _configuration(asked, rest)
    else:
        given = [flag for flag, _, _ in _OF_CONFIGURATIONS if getattr(asked, flag[2:].replace("-", "_")) is not None] + ["--infer"] * asked.infer
        if given:
            raise GaplessError(f"{given[0]} describes the run of a configuration, and {asked.script} is a script: its own arguments follow `--`")
        seconds = None if asked.until_stable else asked.time_limit
        job = {"kind": "script", "arguments": [asked.script, *rest], "steps": asked.steps, "seconds": seconds, "train_in": budget}
    job["assume"] = assume
    kind = card(asked.device)
    answer: Any = run(job, kind) if asked.nproc == 1 else run_ranks(job, kind, asked.nproc)
    if asked.save:
        answer.save(asked.save)
    print({"json": answer.dumps, "html": answer.html, "text": lambda: shown(answer.text, sys.stdout)}[asked.format](), flush=True)
    return 0 if answer.fits else 1


def _budget(asked: Any) -> int:
    """The bytes of --train-in."""
    try:
        budget = positive_bytes(asked.train_in)
    except ValueError as error:
        raise GaplessError(f"--train-in {asked.train_in} is not {error}") from None
    if asked.text is not None or is_configuration(asked.script):
        raise GaplessError("--train-in is for scripts, and a configuration has none: write one that trains the model, or leave it out")
    if asked.nproc != 1:
        raise GaplessError("--train-in plans for one device: leave out --nproc")
    if asked.steps is not None and asked.steps < 5:
        raise GaplessError(f"--steps {asked.steps}: a plan is made after three steps, so --train-in needs five or more")
    return budget


def _configuration(asked: Any, rest: "list[str]") -> "dict[str, Any]":
    """The job of a configuration; an error for flags that contradict each other or that it does not have."""
    if rest:
        raise GaplessError(f"arguments after `--` are for scripts, and {asked.script} is a configuration: leave out {' '.join(rest)}")
    if asked.nproc != 1:
        raise GaplessError("--nproc is for scripts, which say themselves how ranks share the model: write one, or leave it out")
    for flag, value in (("--batch", asked.batch), ("--seq", asked.seq), ("--image", asked.image), ("--grad-accum", asked.grad_accum)):
        if value is not None and value < 1:
            raise GaplessError(f"{flag} {value} runs nothing: give 1 or more")
    if asked.seconds is not None and not asked.seconds > 0:
        raise GaplessError(f"invalid --seconds {asked.seconds:g}: give a length above 0, such as --seconds 10")
    if asked.infer:
        for flag, value in (("--optimizer", asked.optimizer), ("--checkpointing", asked.checkpointing), ("--grad-accum", asked.grad_accum)):
            if value is not None:
                raise GaplessError(f"{flag} has no meaning with --infer: leave one of them out")
    for flag, value, known in (
        ("--precision", asked.precision, PRECISIONS),
        ("--optimizer", asked.optimizer, OPTIMIZERS),
        ("--checkpointing", asked.checkpointing, CHECKPOINTING),
        ("--attention", asked.attention, tuple(ATTENTION)),
    ):
        if value is not None and value not in known:
            raise GaplessError(f"{flag} {value}: an estimate runs {', '.join(known)}; write a script for anything else, and run `gapless estimate script.py`")
    plain = Settings()
    settings = Settings(
        train=not asked.infer,
        sizes=Sizes(asked.batch or 1, asked.seq, asked.image, asked.seconds or plain.sizes.seconds),
        precision=asked.precision or plain.precision,
        optimizer=asked.optimizer or plain.optimizer,
        checkpointing=asked.checkpointing or plain.checkpointing,
        attention=asked.attention,
        accumulation=asked.grad_accum or 1,
    )
    return {"kind": "configuration", "configuration": asked.script, "text": asked.text, "settings": settings, "steps": asked.steps or STEPS}


if __name__ == "__main__":
    sys.exit(main())
