"""The process that estimates: runs over the card, and writes its result into the folder that it was given.

    python -m gapless._estimate.child FOLDER

FOLDER holds `job.pickle`, and gets `result.json` and `snapshot.pickle`. A job is a model with its functions (`call`), a
configuration that a model is made from (`configuration`), or a script (`script`).
"""

import ctypes
import gc
import json
import os
import pickle
import runpy
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, Callable, Optional

from .._errors import GaplessError
from . import modes, programs, rank_messages, steps
from .pace import SECONDS, Enough, Pace
from .process import State
from .together import Together
from .trained_in import Trained

_ENTRIES = 2_000_000


class _Ended(Exception):
    """The script ended itself with an exit code that says that it failed."""


def main(folder: Path) -> int:
    job = pickle.loads((folder / "job.pickle").read_bytes())
    sys.path[:] = job["path"]
    result: dict[str, Any] = {}
    state = State(folder)
    state.say("starting torch")
    found: dict[str, Any] = {}
    try:
        result = _run(job, folder, state, found)
    except Exception as error:
        notes = found.get("notes")
        result = {
            "error": str(error) if isinstance(error, _Ended) else f"{type(error).__name__}: {error}",
            "ended": isinstance(error, _Ended),
            "at": _own_line(error, job),
            "out_of_memory": type(error).__name__ == "OutOfMemoryError",
            "traceback": traceback.format_exc(),
            **(notes.rows if notes is not None else {}),
        }
        if isinstance(error, GaplessError):
            result = {"error": str(error), "refused": True}
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    _meet(found["pace"].stopped if "pace" in found else None)
    sys.stdout.flush()
    sys.stderr.flush()
    # Nothing of the program has to be torn down, and the card has nothing to give back.
    os._exit(0)


def _meet(stopped: Optional[str]) -> None:
    """Waits for the other ranks: collectives do not hold a rank back, and rank 0 serves the others' rendezvous."""
    together = Together.found()
    if together is None:
        return
    together.end(stopped)
    while not together.all_ended():
        time.sleep(0.05)


def _compiles(begins: bool, pace: Pace, state: State) -> None:
    pace.compiles(begins)
    state.say("torch.compile is compiling" if begins else "running the program, after torch.compile")


def _own_line(error: BaseException, job: "dict[str, Any]") -> Optional[str]:
    """The last line of the program itself on the way to an error: in its script, or in a file beside or below it."""
    if job["kind"] != "script":
        return None
    folder = os.path.join(os.path.dirname(os.path.abspath(job["arguments"][0])), "")
    trace = error.__cause__.__traceback__ if isinstance(error, _Ended) and error.__cause__ is not None else error.__traceback__
    files = [(os.path.abspath(line.filename), line) for line in traceback.extract_tb(trace)]
    own = [line for file, line in files if file.startswith(folder) and "-packages" not in file[len(folder) :]]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else None


def _run(job: "dict[str, Any]", folder: Path, state: State, shared: "dict[str, Any]") -> "dict[str, Any]":
    import torch

    from .._fit_into import meters
    from .account import Marks, account
    from .assumed import Assumptions
    from .control_values import Values
    from .reads import Reads

    for ours in ("Attempting to run cuBLAS", "Sparse invariant checks are implicitly disabled"):
        warnings.filterwarnings("ignore", message=ours)
    meters.is_modelled = True
    modes.see_through(torch)
    together = Together.found()
    pace = shared["pace"] = Pace(job["steps"], job.get("seconds", SECONDS), alarms=job["kind"] == "script", together=together)
    modes.compile_without(torch, lambda begins: _compiles(begins, pace, state))
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=_ENTRIES, stacks="python", context="alloc")
    programs.keep_recording(torch.cuda.memory)
    state.say("running the program")
    notes = shared["notes"] = Reads(Assumptions(job.get("assume", [])))
    values = Values(notes)
    marks = Marks(values)
    marks.install()
    modes.in_threads(torch, values)
    if together is not None:
        rank_messages.install(torch, values, together, pace)
    phases = Phases(torch, state.say)
    programs.keep_peaks(torch.cuda.memory, phases.fold, phases.own)
    before = programs.settings()
    assumed: list[str] = []
    recipe = 0
    paced: dict[str, Any] = {}
    with values:
        if job["kind"] == "call":
            _call(job, torch, phases, pace)
            paced = {**(pace.json if pace.varies else {}), "steps": len(pace.steps)}
        elif job["kind"] == "configuration":
            assumed, recipe = _configuration(job, torch, phases, notes)
        else:
            trained = Trained(torch, job["train_in"]) if job.get("train_in") else None
            _script(job, marks, phases, pace, trained)
            paced = {**pace.json, **(trained.json if trained is not None else {})}
    state.say("adding up")
    values.look()
    torch.cuda.synchronize()
    phases.end("end")
    if job["kind"] == "script":
        programs.refuse_nothing(phases.peak_allocated)
    snapshot = torch.cuda.memory._snapshot()
    with open(folder / "snapshot.pickle", "wb") as file:
        pickle.dump(snapshot, file)
    device = torch.cuda.current_device()
    kinds, modules = account(snapshot["device_traces"][device], marks.moments, phases.since)
    host = int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10
    return {
        "peak_allocated": phases.peak_allocated,
        "peak_reserved": phases.peak_reserved,
        "phases": phases.list,
        "kinds": kinds,
        "modules": modules,
        "notes": _notes(),
        **notes.rows,
        "assumptions_unused": notes.assumptions.unused,
        "searches": marks.searches,
        "assumed": assumed,
        "settings": {name: value for name, value in programs.settings().items() if value != before[name]},
        **({"recipe": recipe} if job["kind"] == "configuration" else {}),
        "steps": max(marks.optimizers.values(), default=0) if job["kind"] == "script" else job["steps"],
        **paced,
        "calls": marks.calls,
        "out_of_memory_caught": torch.cuda.memory_stats()["num_ooms"],
        "torch": torch.__version__,
        "host_memory": host,
    }


class Phases:
    """Peaks from one phase of the program to the next, and over all of them since the model was there."""

    def __init__(self, torch: Any, say: "Callable[[str], None]") -> None:
        self._say = say
        self._stats = torch.cuda.memory.memory_stats
        self._reset = torch.cuda.memory.reset_peak_memory_stats
        self.list: list[dict[str, Any]] = []
        self.peak_allocated = self.peak_reserved = self.since = 0
        # Peaks of the present phase that the program set back.
        self._allocated = self._reserved = 0
        # Peaks since the program set them back itself, without the present phase: the program gets these when it asks.
        self.own: dict[str, int] = {}
        # torch's statistics at the end of the latest phase.
        self.last: dict[str, int] = {}

    def begin(self) -> None:
        """Counts peaks from here on."""
        self._reset()
        self.since = time.time_ns() // 1000
        self.list.clear()
        self.peak_allocated = self.peak_reserved = self._allocated = self._reserved = 0

    def fold(self) -> None:
        """Keeps the peaks of the present phase, which the program is about to set back."""
        self.own.clear()
        self._keep(self._stats())

    def _keep(self, stats: "dict[str, int]") -> None:
        self._allocated = max(self._allocated, stats["allocated_bytes.all.peak"])
        self._reserved = max(self._reserved, stats["reserved_bytes.all.peak"])

    def end(self, name: str, step: int = 0) -> None:
        stats = self._stats()
        self._keep(stats)
        for key, value in stats.items():
            if key.endswith(".peak"):
                self.own[key] = max(self.own.get(key, 0), value)
        allocated, reserved = self._allocated, self._reserved
        self._allocated = self._reserved = 0
        self.peak_allocated, self.peak_reserved = max(self.peak_allocated, allocated), max(self.peak_reserved, reserved)
        self.list.append({"name": name, "step": step, "peak_allocated": allocated, "allocated": stats["allocated_bytes.all.current"], "reserved": reserved})
        self._reset()
        self.last = dict(stats)
        self._say(f"{sum(phase['name'] == name for phase in self.list)} x {name}" if name != "step" else f"step {step} is done")

    def of_step(self, step: int) -> "tuple[dict[str, int], int]":
        """torch's statistics after a step, and its peak."""
        return self.last, max(phase["peak_allocated"] for phase in self.list if phase["step"] == step)


def _call(job: "dict[str, Any]", torch: Any, phases: Phases, pace: Pace) -> None:
    from . import transport

    work = transport.loads(job["payload"])
    precision = job["precision"]
    torch.manual_seed(0)
    steps.first_product()
    model = work["model"]
    if not isinstance(model, torch.nn.Module):
        model = model()
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"`model` is to be a module or a callable that makes one, and made {type(model).__name__}")
    model = model.to("cuda", steps.dtype_of(precision))
    phases.end("model")
    phases.begin()
    batch, loss = work["batch"], work["loss"] or _plain_loss
    numbers = pace.numbers(phases.of_step)
    if job["train"]:
        steps.train(model, batch, loss, work["optimizer"] or torch.optim.AdamW, numbers, precision, phases.end)
    else:
        steps.infer(model, batch, loss, numbers, precision, phases.end)


def _configuration(job: "dict[str, Any]", torch: Any, phases: Phases, notes: Any) -> "tuple[list[str], int]":
    """Runs the model of a configuration with the first batch that it accepts. Returns the sentences and the batch."""
    from . import configured
    from . import recipe as recipes

    settings = job["settings"]
    torch.manual_seed(0)
    steps.first_product()
    work = configured.prepared(job["configuration"], settings, job.get("text"))
    model = work.model.to("cuda")
    phases.end("model")
    why: list[str] = []
    for number, recipe in enumerate(work.recipes):
        notes.clear()
        phases.begin()
        try:
            work.run(recipe, job["steps"], phases.end)
        except GaplessError:
            raise
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            why.append(f"with {recipes.words(recipe)}: {type(error).__name__}: {str(error).strip()[:300]}")
            if os.environ.get("GAPLESS_ESTIMATE_TELL"):
                traceback.print_exc()
            error.__traceback__ = None
            model.zero_grad(set_to_none=True)
            gc.collect()
            torch.cuda.empty_cache()
        else:
            return work.sentences(recipe), number
    raise GaplessError(configured.refusal(model, why))


def _plain_loss(model: Any, batch: Any) -> Any:
    """A call for most models: keywords, a list of inputs, or one input; a loss of their own, or a sum."""
    out = model(**batch) if isinstance(batch, dict) else model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    found = getattr(out, "loss", None)
    if found is None and isinstance(out, dict):
        found = out.get("loss")
    if found is not None:
        return found
    first = out[0] if isinstance(out, (tuple, list)) else getattr(out, "logits", out)
    return first.float().sum()


def _script(job: "dict[str, Any]", marks: Any, phases: Phases, pace: Pace, trained: Optional[Trained]) -> None:
    def after_step() -> None:
        number = max(marks.optimizers.values())
        phases.end("step", number)
        if trained is None or trained.is_planned():
            pace.stepped(phases.last, phases.list[-1]["peak_allocated"], number)

    marks.before_step, marks.after_step = lambda: pace.steps_next(list(marks.optimizers.values())), after_step
    marks.called, marks.given = pace.called, pace.given
    programs.run_own_rank()
    sys.argv[:] = job["arguments"]
    sys.path.insert(0, os.path.dirname(os.path.abspath(job["arguments"][0])))
    phases.begin()
    phases.since = 0
    try:
        runpy.run_path(job["arguments"][0], run_name="__main__")
    except Enough:
        pass
    except SystemExit as end:
        if end.code not in (None, 0):
            told = f"with exit code {end.code}" if isinstance(end.code, int) else f'by itself with "{end.code}"'
            raise _Ended(f"the script ended {told} after {max(marks.optimizers.values(), default=0)} steps") from end
    finally:
        pace.end()
        marks.before_step = marks.after_step = marks.called = marks.given = None


def _notes() -> "list[dict[str, Any]]":
    """The card's notes on the evidence of its sizes."""
    card = ctypes.CDLL("libcuda.so.1")
    card.card_notes.restype, card.card_notes.argtypes = ctypes.c_size_t, [ctypes.c_char_p, ctypes.c_size_t]
    room = card.card_notes(None, 0) + 1
    text = ctypes.create_string_buffer(room)
    card.card_notes(text, room)
    rows = (line.split() for line in text.value.decode().splitlines())
    return [{"evidence": evidence, "function": function, "calls": int(calls), "largest": int(largest)} for evidence, function, calls, largest in rows]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
