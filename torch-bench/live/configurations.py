"""The peaks of configurations of transformers and diffusers on a card, beside what was estimated for them; and of whole
scripts.

    python torch-bench/live/configurations.py [--site FOLDER] [--limit SECONDS] [--at-once N] [--only NAME]

The same code makes model and batch as in `gapless estimate config.json`. Each cell runs in a forked process of its own,
several at once. With --site the packages in that folder are used. Writes $OUT/configurations.result.json: peaks, and
the sizes of all allocations (compressed). Needs torch, transformers, diffusers, accelerate, pytorch_lightning.
"""

import argparse
import contextlib
import importlib.metadata
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import modules

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ESTIMATE = HERE.parent / "estimate"
SCRIPTS = {"script trainer": "with_trainer.py", "script lightning": "with_lightning.py"}
SCRIPT_ESTIMATES = ESTIMATE / "scripts.json"


def cell(text, settings, steps, recipe):
    """One cell: as the child of `gapless estimate` runs it, with the batch that was chosen there."""
    import torch

    from gapless._estimate import configured
    from gapless._estimate.steps import first_product
    torch.manual_seed(0)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(max_entries=400_000, context=None)
    first_product()
    work = configured.prepared("config.json", settings, text)
    work.model = work.model.to("cuda")
    chosen = next(itertools.islice(work.recipes, recipe, None))
    torch.cuda.reset_peak_memory_stats()
    running = []
    work.run(chosen, steps, lambda phase, step: running.append(torch.cuda.max_memory_allocated()))
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    return {
        "peak_allocated": stats["allocated_bytes.all.peak"],
        "peak_reserved": stats["reserved_bytes.all.peak"],
        "running": running,
        "events": modules.packed(torch.cuda.memory._snapshot()["device_traces"][0]),
    }


def script(file):
    """A whole script, unchanged, in a process of its own: it prints its peaks."""
    said = subprocess.run([sys.executable, str(HERE / "estimated" / file)], capture_output=True, text=True, check=False)
    line = next((line for line in said.stdout.splitlines() if line.startswith("peak ")), None)
    if line is None:
        return {"error": (said.stdout + said.stderr)[-600:]}
    return {"peak_allocated": int(line.split()[1]), "peak_reserved": int(line.split()[2])}


def is_usable(site):
    """True if the packages in a folder can be imported here; else the installed ones are used, and it is said."""
    program = "import transformers, diffusers, accelerate; from transformers import Trainer, LlamaForCausalLM"
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": site}, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{site} is not used: {done.stderr[-1500:]}")
    return done.returncode == 0


def jobs(only, estimates):
    import architectures

    for name, keys in architectures.CONFIGURATIONS.items():
        if only and name not in only:
            continue
        for title, settings, steps in architectures.cells(name):
            recipe = estimates.get(title, {}).get("recipe", 0)
            yield title, lambda k=keys, s=settings, n=steps, r=recipe: cell(json.dumps(k), s, n, r)
    yield from ((name, lambda file=file: script(file)) for name, file in SCRIPTS.items() if not only or name in only)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--site", help="a folder with packages that go before the installed ones")
    parser.add_argument("--limit", type=float, default=220.0)
    parser.add_argument("--at-once", type=int, default=10)
    parser.add_argument("--only", action="append")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    if asked.site and is_usable(asked.site):
        sys.path.insert(0, asked.site)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [asked.site, os.environ.get("PYTHONPATH")]))
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
    import torch
    import transformers

    for name in ("torch", "transformers", "diffusers", "accelerate", "pytorch_lightning"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            print(name, importlib.metadata.version(name))
    torch.set_num_threads(2)
    # Models are filled on the host, as on a user's machine.
    modules.CELL_SECONDS = 100
    # The forks share what these import. diffusers is not among them: it looks at the card as it is imported.
    transformers.AutoModelForCausalLM, transformers.Trainer  # noqa: B018
    estimates = {}
    for file in (ESTIMATE / "architectures.json", SCRIPT_ESTIMATES):
        estimates.update(json.loads(file.read_text()) if file.is_file() else {})
    began = time.time()
    found = modules.lightened(modules.run(jobs(asked.only, estimates), asked.limit, asked.at_once))
    modules.shown(found, estimates)
    out = Path(os.environ.get("OUT", "."), "configurations.result.json")
    out.write_text(json.dumps(found))
    failed = sum("error" in row for row in found.values())
    print(f"{len(found) - failed} passed, {failed} failed in {time.time() - began:.0f} s; the result is {out.name}, {out.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
