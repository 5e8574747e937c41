"""Estimates of JAX: of one function with the shapes of its arguments, and of a whole script."""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any, Optional

from .._errors import GaplessError
from .._estimate.cards import Card, card
from .ahead import CHOSEN, TRANSFORMS, Compiler, folder_of_dumps, prepare
from .answer import SHARE, Device, JaxEstimate, at_peak, in_words, placed, requests_of, rows_of
from .unplanned import updated_in_place
from .watch import Enough, Request, Watch, complete, install

# How far off a peak may be, as a share of it: docs/measured/jax.md has the programs that it was measured on.
_ERROR = 0.10
# The same below the figure, for programs with products: a card may take XLA's own kernels instead of cuBLAS's. They are
# fused with more and so need less.
_ERROR_BELOW = 0.25
# The part of a peak from which an array that is updated in place is worth a note.
_NOTED = 0.02
# A card whose description was not read from one may be compiled for otherwise.
_UNMEASURED = 0.15
# Seconds after which a script is stopped.
SECONDS = 60.0


def share() -> float:
    """The share of the card that XLA's allocator may take, as XLA reads it."""
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        text = os.environ.get(name)
        if text:
            try:
                return float(text)
            except ValueError:
                raise GaplessError(f"invalid {name} {text!r}: give a share such as 0.9") from None
    return SHARE


def preallocates() -> bool:
    return os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() not in ("false", "0")


def of_function(function: Any, shapes: "tuple[Any, ...]", keywords: "dict[str, Any]", device: str, count: int) -> JaxEstimate:
    """The memory of one call. Arguments are arrays, or `jax.ShapeDtypeStruct`s."""
    started = time.monotonic()
    kind = card(device)
    dumps = prepared(count)
    import jax

    jitted = function if hasattr(function, "trace") else jax.jit(function)
    compiler = Compiler(kind, count, dumps)
    traced = jitted.trace(*shapes, **keywords)
    program = compiler.compile(traced.lower(lowering_platforms=("cuda",)), getattr(function, "__name__", "function"))
    watch = Watch(compiler, 1)
    complete(program)
    watch.requests[0].append(Request(f"arguments of {program.name}", max(program.arguments, 1), watch.tick()))
    watch.programs[program.name] = program
    watch.calls.append(program)
    for request in watch._run(program, 1)[0]:
        request.end = None
    return answer(watch, kind, 1, started, [])


def of_script(arguments: "list[str]", device: str, count: int, seconds: "Optional[float]", calls: "Optional[int]") -> JaxEstimate:
    """The memory of a script, which is run in this process: nothing of jax may have been imported before."""
    started = time.monotonic()
    kind = card(device)
    dumps = prepare(count)
    compiler = Compiler(kind, count, dumps)
    watch = Watch(compiler, count, seconds, calls)
    remove = install(watch)
    before = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(arguments[0]))
    notes = []
    try:
        runpy.run_path(arguments[0], run_name="__main__")
    except Enough:
        what = "a minute of steps" if watch.stopped == "time" and seconds == SECONDS else watch.stopped
        notes.append(f"the script was stopped after {what}: what comes later may need more")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise GaplessError(f"{arguments[0]} ended with {ended.code}") from None
    finally:
        remove()
        sys.argv, sys.path[0] = before
    watch.look()
    if not watch.calls:
        raise GaplessError(f"{arguments[0]} called no function that it gave to jax.jit: there is nothing to compile for the card")
    used = max((d + 1 for d in range(count) if watch.requests[d]), default=1)
    return answer(watch, kind, used, started, notes)


def answer(watch: Watch, kind: Card, used: int, started: float, notes: "list[str]") -> JaxEstimate:
    part, ahead = share(), preallocates()
    devices, known = [], {}
    for number in range(used):
        requests = requests_of(watch, number)
        # Devices of a mesh mostly hold the same.
        if requests not in known:
            known[requests] = placed(requests, kind, part, ahead)
        run = known[requests]
        name, held = at_peak(watch, number)
        failed = run["oom"]["requested"] if run["oom"] else None
        peak = max(run["peak_allocated"], sum(held.values()))
        devices.append(Device(number, peak, run["peak_reserved"], name, held["arrays"], held["temporaries"], held["outputs"], failed))
    host = sum(program.host for program in watch.programs.values())
    if host:
        notes.append("arrays in the host's memory (pinned_host) are not part of these figures; `gapless report` of a dump shows them")
    if not kind.measured:
        notes.append(f"the description of the {kind.title} was not read from a card")
    chosen = chosen_on_the_card(watch)
    unknown = [name for name in chosen if name != TRANSFORMS]
    if TRANSFORMS in chosen:
        notes.append(f"{TRANSFORMS}: cuFFT's workspace is in this figure by its usual size; the card may choose another")
    if unknown:
        notes.append(f"{' and '.join(unknown)}: the card chooses the kernel, whose scratch memory XLA does not plan ahead; it is not in this figure")
    peak = max((device.peak for device in devices), default=0)
    updated = max((updated_in_place(program.dump) for program in watch.programs.values() if program.dump), default=0)
    updated = updated if updated > _NOTED * peak else 0
    if updated:
        notes.append(f"an array of {in_words(updated)} is updated in place: a card was seen to copy such an array, which is not in this figure")
    products = any(b"__cublas" in Path(program.dump).read_bytes() for program in watch.programs.values() if program.dump)
    error = _ERROR if kind.measured else _UNMEASURED
    dumps = [program.dump for program in watch.programs.values() if program.dump]
    seconds = time.monotonic() - started
    answer = JaxEstimate(kind, devices, rows_of(watch), seconds, error, notes, part, ahead, requests_of(watch, 0), dumps, bool(chosen or updated))
    answer.error_below = max(error, _ERROR_BELOW) if products else error
    return answer


def chosen_on_the_card(watch: Watch) -> "list[str]":
    """The programs' work with kernels that only a card chooses."""
    found = {name for program in watch.programs.values() for name in program.chosen}
    return [name for name in CHOSEN if name in found]


def prepared(count: int) -> str:
    """The folder of dumps; none if jax started before Gapless could ask for them, and then sizes are XLA's sums."""
    started = False
    if "jax" in sys.modules:
        from jax._src import xla_bridge

        started = xla_bridge.backends_are_initialized()
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    return folder_of_dumps() if started else prepare(count)
