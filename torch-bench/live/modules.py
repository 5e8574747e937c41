"""The peaks of the modules of torch-bench/estimate/zoo on a card, beside what was estimated for them.

    python torch-bench/live/modules.py [--estimates FILE] [--limit SECONDS] [--at-once N] [--only NAME] [--file NAME]

Three cells a module, each in a forked process of its own, several at once; whole programs; and single operators with
every allocation that they make. Writes $OUT/estimate.result.json: peaks, the sizes of all allocations (compressed), the
operators' sizes. Prints each peak beside its estimate. With --file only the cases of a file of the zoo run, such as
`strangers` or `loops`. Needs torch, torchvision, transformers.
"""

import argparse
import array
import base64
import json
import lzma
import os
import signal
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path

ESTIMATE = Path(__file__).resolve().parents[1] / "estimate"
sys.path.insert(0, str(ESTIMATE))
# The seconds of one cell, and the bytes of all cells' events in the result.
CELL_SECONDS, MOST_EVENTS = 45, 11 << 20


def cell(case, precision, optimizer, mode):
    """As the cells of testdata/estimate were measured."""
    import torch

    import zoo

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    torch.manual_seed(0)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=400_000, context=None)
    first = torch.randn(64, 64, device="cuda")
    (first @ first).sum().item()
    del first
    model = case.make().to("cuda", dtype)
    torch.cuda.reset_peak_memory_stats()
    lower = torch.float16 if precision == "amp-fp16" else torch.bfloat16
    steps = []

    def under():
        return torch.autocast("cuda", dtype=lower, enabled=precision.startswith("amp"))

    if mode == "train":
        model.train()
        stepper = zoo.optimizer(optimizer)(model.parameters())
        for _ in range(3):
            x = case.batch("cuda", dtype, case.size)
            with under():
                loss = case.loss(model, x)
            steps.append(torch.cuda.max_memory_allocated())
            loss.backward()
            steps.append(torch.cuda.max_memory_allocated())
            stepper.step()
            steps.append(torch.cuda.max_memory_allocated())
            stepper.zero_grad(set_to_none=True)
            del loss, x
    else:
        model.train(False)
        with torch.no_grad(), under():
            for _ in range(2):
                x = case.batch("cuda", dtype, case.size)
                loss = case.loss(model, x)
                steps.append(torch.cuda.max_memory_allocated())
                del loss, x
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    found = {"peak_allocated": stats["allocated_bytes.all.peak"], "peak_reserved": stats["reserved_bytes.all.peak"], "running": steps}
    return {**found, "events": packed(torch.cuda.memory._snapshot()["device_traces"][0])}


def packed(events):
    """The sizes of all allocations, freed ones negative, as compressed text."""
    sizes = array.array(
        "q", (event["size"] if event["action"] == "alloc" else -event["size"] for event in events if event["action"] in ("alloc", "free_completed"))
    )
    return base64.b85encode(lzma.compress(sizes.tobytes(), preset=2)).decode()


def program(name):
    import torch

    from zoo import loops, programs

    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=400_000, context=None)
    {**programs.PROGRAMS, **loops.PROGRAMS}[name]()
    torch.cuda.synchronize()
    return {**programs.peaks(), "events": packed(torch.cuda.memory._snapshot()["device_traces"][0])}


def operators(names):
    import torch

    import probes

    torch.cuda.init()
    first = torch.randn(64, 64, device="cuda", requires_grad=True)
    (first @ first).sum().backward()
    found = {}
    for name, make in probes.probes():
        if name in names:
            try:
                found[name] = probes.record(make)
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
            torch.cuda.empty_cache()
    return {"operators": found}


def jobs(only):
    """The jobs: (name, function)."""
    import probes
    import zoo
    from zoo import loops, programs

    names = [name for name, _ in probes.probes()]
    parts = 10
    yield from ((f"operators {at}", lambda at=at: operators(set(names[at::parts]))) for at in range(parts) if not only)
    for number, (name, case) in enumerate(zoo.cases().items()):
        for precision, optimizer, mode in zoo.cells(number):
            if not only or name in only:
                yield f"{name} {precision} {optimizer} {mode}", lambda c=case, p=precision, o=optimizer, m=mode: cell(c, p, o, m)
    yield from ((f"program {name}", lambda name=name: program(name)) for name in (*programs.PROGRAMS, *loops.PROGRAMS) if not only or name in only)


def begin(name, function, file):
    process = os.fork()
    if process:
        return process
    signal.alarm(CELL_SECONDS if not name.startswith("operators") else 200)
    try:
        found = function()
    except Exception:
        found = {"error": traceback.format_exc()[-600:]}
    Path(file).write_text(json.dumps(found))
    os._exit(0)


def run(named, limit, at_once):
    """Runs jobs, (name, function) each, in forks of this process, so many at once; what each found, by its name."""
    began, found, running = time.time(), {}, {}
    waiting = list(named)[::-1]
    with tempfile.TemporaryDirectory() as folder:
        count = 0
        while waiting or running:
            late = time.time() - began > limit
            while waiting and not late and len(running) < at_once:
                name, function = waiting.pop()
                count += 1
                file = Path(folder, str(count))
                running[begin(name, function, file)] = (name, file)
            if late:
                for name, _ in waiting:
                    found[name] = {"error": "no time was left"}
                waiting.clear()
                for process in running if time.time() - began > limit + 15 else ():
                    os.kill(process, signal.SIGKILL)
            process, status = os.waitpid(-1, 0 if not late else os.WNOHANG)
            if process:
                name, file = running.pop(process)
                found[name] = json.loads(file.read_text()) if file.is_file() else {"error": f"ended with {status}"}
            elif late:
                time.sleep(0.2)
    return found


def lightened(found):
    """The same without the longest lists of events, if all of them weigh too much."""
    weight = sum(len(row.get("events", "")) for row in found.values())
    for row in sorted(found.values(), key=lambda row: -len(row.get("events", ""))):
        if weight > MOST_EVENTS and "events" in row:
            weight -= len(row.pop("events"))
    return found


def shown(found, estimates):
    """A line for each figure, and how many are off by how much."""
    errors = {"peak_allocated": [], "peak_reserved": []}
    for name, row in found.items():
        if name.startswith("operators"):
            continue
        if "error" in row:
            print(f"{name:<48} FAILED {row['error'].strip().splitlines()[-1][:150]}")
            continue
        guess = estimates.get(name)
        line = f"{name:<48} {row['peak_allocated'] / 2**20:9.1f} {row['peak_reserved'] / 2**20:9.1f} MiB"
        for key in errors:
            if guess and key in guess:
                error = guess[key] / row[key] - 1
                errors[key].append(abs(error))
                line += f"  {error:+9.3%} ± {guess['bars'][key]:.1%}{' ' if abs(error) <= guess['bars'][key] else '!'}"
        print(line if guess else f"{line}  not estimated")
    for (key, values), wanted in zip(errors.items(), ("median 0.01 %, 95th percentile 0.5 %, worst 2 %", "median 0.1 %, 95th percentile 8 %")):
        values.sort()
        if values:
            print(
                f"{key}: median {values[len(values) // 2]:.3%}, 95th percentile {values[int(0.95 * (len(values) - 1))]:.3%}, worst {values[-1]:.3%}; wanted {wanted}"
            )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--estimates", default=str(ESTIMATE / "zoo/estimates.json"))
    parser.add_argument("--limit", type=float, default=200.0)
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--file", action="append", default=[])
    asked = parser.parse_args()
    files = [import_module(f"zoo.{name}") for name in asked.file]
    asked.only += [name for file in files for name in (*getattr(file, "CASES", ()), *getattr(file, "PROGRAMS", ()))]
    estimates = json.loads(Path(asked.estimates).read_text()) if Path(asked.estimates).is_file() else {}
    import torch  # noqa: F401  (the forks share what is imported here; no card is touched)
    import torch._dynamo  # noqa: F401
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    began = time.time()
    found = lightened(run(jobs(asked.only), asked.limit, asked.at_once))
    out = Path(os.environ.get("OUT", "."), "estimate.result.json")
    out.write_text(json.dumps(found))
    shown(found, estimates)
    failed = sum("error" in row for row in found.values())
    print(f"{len(found) - failed} of {len(found)} ran in {time.time() - began:.0f} s; the result is {out.name}, {out.stat().st_size / 2**20:.1f} MiB")
    print(f"{len(found) - failed} passed, {failed} failed")


if __name__ == "__main__":
    main()
