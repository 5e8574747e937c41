"""Estimates of the modules in zoo/: writes zoo/estimates.json, which torch-bench/live/modules.py compares with a card.

    python torch-bench/estimate/estimates.py [--set tuned|held|all] [--only NAME] [--truth FILE] [--keep FOLDER]

Cells run in forks of one process that has imported torch and the model libraries, two at a time. Each figure is
compared with what an H200 measured, or with --truth, a result of modules.py. With --keep each run's snapshot stays in
FOLDER.
"""

import argparse
import gzip
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "python")]
CELL_SECONDS = 240


def wanted(which, only):
    """(name of the cell, job without its path) of each case and program."""
    import zoo
    from zoo import loops, programs

    for number, (name, case) in enumerate(zoo.cases().items()):
        if (only and name not in only) or (which != "all" and zoo.is_held(name) != (which == "held")):
            continue
        for precision, optimizer, mode in zoo.cells(number):
            train = mode == "train"
            yield (
                f"{name} {precision} {optimizer} {mode}",
                dict(kind="call", case=case, optimizer=zoo.optimizer(optimizer), precision=precision, train=train, steps=3 if train else 2),
            )
    for file in (programs, loops):
        for name in file.PROGRAMS:
            if (not only or name in only) and (which == "all" or zoo.is_held(name) == (which == "held")):
                yield f"program {name}", dict(kind="script", arguments=[file.__file__, name], steps=3)


def begin(job, folder):
    process = os.fork()
    if process:
        return process
    import signal

    from gapless._estimate import child, transport

    signal.alarm(CELL_SECONDS)
    os.dup2(os.open(folder / "said", os.O_WRONLY | os.O_CREAT), 2)
    os.dup2(2, 1)
    if job["kind"] == "call":
        case = job.pop("case")
        job["payload"] = transport.dumps(
            {"model": case.make, "batch": lambda device, dtype: case.batch(device, dtype, case.size), "loss": case.loss, "optimizer": job.pop("optimizer")}
        )
    (folder / "job.pickle").write_bytes(pickle.dumps({**job, "path": sys.path}))
    child.main(folder)
    os._exit(3)


def estimated(cells, keep):
    running = {}
    cells = list(cells)[::-1]
    with tempfile.TemporaryDirectory() as top:
        while cells or running:
            while cells and len(running) < 2:
                name, job = cells.pop()
                folder = Path(top, name.replace(" ", "_"))
                folder.mkdir()
                running[begin(job, folder)] = (name, folder, time.time())
            process, status, used = os.wait3(0)
            name, folder, began = running.pop(process)
            file = folder / "result.json"
            said = (folder / "said").read_text(errors="replace").strip().splitlines() if (folder / "said").is_file() else []
            found = json.loads(file.read_text()) if file.is_file() else {"error": f"ended with {status}: {' / '.join(said[-2:])}"}
            found["cpu"] = used.ru_utime + used.ru_stime
            if keep and (folder / "snapshot.pickle").is_file():
                Path(keep).mkdir(exist_ok=True, parents=True)
                shutil.copy(folder / "snapshot.pickle", Path(keep, f"{folder.name}.pickle"))
            shutil.rmtree(folder)
            yield name, found


def compared(cells, keep, truth, out):
    """Estimates cells, prints each beside what a card measured, and writes them to `out`; how many failed."""
    from gapless._estimate import bars, cards

    kept = json.loads(out.read_text()) if out.is_file() else {}
    errors = {"peak_allocated": [], "peak_reserved": []}
    inside = dict.fromkeys(errors, 0)
    failed = 0
    for name, found in estimated(cells, keep):
        if "error" in found:
            failed += 1
            print(f"{name:<48} FAILED {found['error'][:400]}", flush=True)
            if found.get("traceback"):
                print("    " + "\n    ".join(found["traceback"].strip().splitlines()[-7:]), flush=True)
            continue
        share = bars.bars(found, cards.card("h200"))
        kept[name] = {"peak_allocated": found["peak_allocated"], "peak_reserved": found["peak_reserved"], "bars": share}
        if "recipe" in found:
            kept[name]["recipe"] = found["recipe"]
        line = f"{name:<48} {found['peak_allocated'] / 2**20:9.1f} {found['peak_reserved'] / 2**20:9.1f} MiB {found['cpu']:5.1f} s"
        real = truth.get(name, {})
        for key in errors:
            if key in real:
                error = found[key] / real[key] - 1
                errors[key].append(abs(error))
                inside[key] += abs(error) <= share[key]
                line += f"  {error:+9.4%} ± {share[key]:.2%}{' ' if abs(error) <= share[key] else '!'}"
        notes = sorted(
            {f"{row['function']}" for row in found["reads"]}
            | {f"{row['function']}?" for row in found["choices"]}
            | {row["function"] for row in found["notes"] if row["evidence"] == "assumed"}
        )
        print(f"{line} {' '.join(notes)[:120]}", flush=True)
        for sentence in found.get("assumed", []):
            print(f"    {sentence}", flush=True)
        out.write_text(json.dumps(dict(sorted(kept.items())), indent=0) + "\n")
    for key, values in errors.items():
        values.sort()
        if values:
            print(
                f"{key}: median {values[len(values) // 2]:.4%}, 95th percentile {values[int(0.95 * (len(values) - 1))]:.3%}, worst {values[-1]:.3%}; inside {inside[key]} of {len(values)}"
            )
    print(f"{failed} failed")
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", default="tuned", choices=("tuned", "held", "all"))
    parser.add_argument("--only", action="append")
    parser.add_argument("--truth", default=str(ROOT / "testdata/estimate/h200_zoo_cells.json.gz"))
    parser.add_argument("--keep")
    parser.add_argument("--out", default=str(HERE / "zoo/estimates.json"))
    asked = parser.parse_args()
    from gapless._estimate import cards

    if "GAPLESS_CARD" not in os.environ:
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=cards.environment(cards.card("h200"))).returncode)
    import torch  # noqa: F401
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    opened = gzip.open if asked.truth.endswith(".gz") else open
    with opened(asked.truth, "rt") as file:
        truth = json.load(file)
    compared(wanted(asked.set, asked.only), asked.keep, truth, Path(asked.out))


if __name__ == "__main__":
    main()
