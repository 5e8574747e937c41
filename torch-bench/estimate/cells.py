"""Estimates against what an H200 measured: the modules of modules.py, three cells each.

    python torch-bench/estimate/cells.py [--set tuned|held|all] [--only NAME] [--cold]

Cells run in forks of one process that has imported torch and the model libraries, as the measured ones did; with --cold
each is a `gapless.estimate()` of its own, imports included. Every fourth module was set aside before anything was
tuned. Needs the environment that `cargo xtask bench estimate` makes: torch, torchvision, transformers.
"""

import argparse
import gzip
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CELLS = ROOT / "testdata/estimate/h200_module_cells.jsonl.gz"
HELD = {"mixer", "r3d_18", "clip", "deberta-v2"}

OPTIMIZERS = {
    "adamw": lambda p: __import__("torch").optim.AdamW(p, lr=1e-5),
    "adamw-fused": lambda p: __import__("torch").optim.AdamW(p, lr=1e-5, fused=True),
    "sgd-momentum": lambda p: __import__("torch").optim.SGD(p, lr=1e-5, momentum=0.9),
    "adam-foreach": lambda p: __import__("torch").optim.Adam(p, lr=1e-5, foreach=True),
    "none": None,
}


def cells(which, only):
    for line in gzip.open(CELLS, "rt"):
        cell = json.loads(line)
        held = cell["module"] in HELD
        if (which == "all" or held == (which == "held")) and (not only or cell["module"] in only):
            yield cell


def request(cell, modules):
    make, batch, loss = modules.CASES[cell["module"]]
    size = cell["batch"]
    train = cell["mode"] == "train"
    return dict(
        model=make, batch=lambda device, dtype: batch(device, dtype, size), loss=loss, optimizer=OPTIMIZERS[cell["optimizer"]],
        precision=cell["precision"], train=train, steps=3 if train else 2, device="h200",
    )  # fmt: skip


def warm(wanted):
    """Estimates of cells, each in a fork: what gapless.estimate() does, without its imports."""
    import torch  # noqa: F401
    import torchvision  # noqa: F401
    import transformers  # noqa: F401

    from gapless._estimate import child, transport

    import modules

    for cell in wanted:
        with tempfile.TemporaryDirectory() as folder:
            began = time.time()
            process = os.fork()
            if process == 0:
                asked = request(cell, modules)
                payload = transport.dumps({key: asked[key] for key in ("model", "batch", "loss", "optimizer")})
                job = {"kind": "call", "path": sys.path, "payload": payload, "precision": asked["precision"], "train": asked["train"], "steps": asked["steps"]}
                Path(folder, "job.pickle").write_bytes(pickle.dumps(job))
                child.main(Path(folder))
            _, status = os.waitpid(process, 0)
            file = Path(folder, "result.json")
            found = json.loads(file.read_text()) if file.is_file() else {"error": f"ended with {status}"}
            found["seconds"] = time.time() - began
            yield cell, found


def cold(wanted):
    import gapless

    import modules

    for cell in wanted:
        began = time.time()
        try:
            answer = gapless.estimate(**{**request(cell, modules)})
            found = {**answer.json, "seconds": time.time() - began}
        except gapless.GaplessError as error:
            found = {"error": str(error), "seconds": time.time() - began}
        yield cell, found


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", default="all", choices=("tuned", "held", "all"))
    parser.add_argument("--only", action="append")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--json", help="write every answer into this file")
    arguments = parser.parse_args()
    from gapless._estimate import bars, cards

    if not arguments.cold and "GAPLESS_CARD" not in os.environ:
        environment = cards.environment(cards.card("h200"))
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)
    rows, failed = [], 0
    out = open(arguments.json, "w") if arguments.json else None
    for cell, found in (cold if arguments.cold else warm)(cells(arguments.set, arguments.only)):
        name = f"{cell['module']:<20} {cell['precision']:<8} {cell['mode']:<5}"
        if out:
            print(json.dumps({"cell": {k: cell[k] for k in ("module", "precision", "mode", "peak_allocated", "peak_reserved")}, **found}), file=out, flush=True)
        if "error" in found:
            failed += 1
            print(f"{name} FAILED {found['error'][:300]}", flush=True)
            continue
        errors = [found[key] / cell[key] - 1 for key in ("peak_allocated", "peak_reserved")]
        bar = found.get("bars") or bars.bars(found, cards.card("h200"))
        inside = [abs(error) <= bar[key] for error, key in zip(errors, ("peak_allocated", "peak_reserved"))]
        rows.append((*errors, *inside, found["seconds"], found["host_memory"]))
        marks = "".join(" " if ok else "!" for ok in inside)
        print(f"{name} {errors[0]:+9.4%} ± {bar['peak_allocated']:.2%}  {errors[1]:+8.3%} ± {bar['peak_reserved']:.1%} {marks} {found['seconds']:.1f} s", flush=True)
    if not rows:
        sys.exit("no cell ran")
    sizes = [sorted(abs(row[at]) for row in rows) for at in (0, 1)]
    for title, errors in zip(("allocated", "reserved"), sizes):
        print(f"{title:<10} median {quantile(errors, 0.5):.4%}, 95th percentile {quantile(errors, 0.95):.3%}, worst {errors[-1]:.3%}")
    print(f"inside the bar: allocated {sum(row[2] for row in rows)}, reserved {sum(row[3] for row in rows)} of {len(rows)}; failed {failed}")
    print(f"seconds: median {quantile([row[4] for row in rows], 0.5):.1f}; host memory at most {max(row[5] for row in rows) / 2**30:.2f} GiB")
    print(f"{len(rows)} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
