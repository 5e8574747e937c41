"""Which types of the installed transformers and classes of diffusers `gapless estimate config.json` answers.

    python torch-bench/estimate/every_type.py [--infer] [--only TYPE] [--part K/N] [--out FILE]

Each type's default configuration, one step, a small batch. Prints what was run, or why not, and how many were answered.
Types that need another package (timm, and the like) or a configuration inside are counted apart.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "python")]
# Words of the refusal if a default configuration does not describe a model, or the package of the model is missing.
_ELSEWHERE = ("No module named", "requires the", "cannot make this model", "has no class to run", "not installed", "pip install")


def texts():
    """The text of a configuration for each type and class."""
    import diffusers
    import torch
    from transformers.models.auto import configuration_auto

    for name in configuration_auto.CONFIG_MAPPING:
        yield name, {"model_type": name}
    for name in dir(diffusers):
        if name.startswith("_"):
            continue
        try:
            found = getattr(diffusers, name)
        except (ImportError, RuntimeError):
            continue
        if isinstance(found, type) and issubclass(found, torch.nn.Module) and hasattr(found, "from_config"):
            yield f"diffusers {name}", {"_class_name": name}


def wanted(train, only, part):
    from gapless._estimate.configured import Settings
    from gapless._estimate.sizes import Sizes

    number, count = part
    # diffusers looks at the card as it is imported, and a process that has done so cannot fork: another makes the list.
    said = subprocess.run([sys.executable, __file__, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout
    for at, (name, keys) in enumerate(json.loads(said.splitlines()[-1])):
        if (only and name not in only) or at % count != number:
            continue
        # Nothing is asked for: lengths and sizes are what the configuration says.
        settings = Settings(train=train, sizes=Sizes(1, None, None, 4.0))
        yield name, dict(kind="configuration", configuration=name, text=json.dumps(keys), settings=settings, steps=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--infer", action="store_true")
    parser.add_argument("--only", action="append")
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--out")
    parser.add_argument("--list", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.list:
        print(json.dumps(list(texts())))
        return
    from gapless._estimate import cards

    if "GAPLESS_CARD" not in os.environ:
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=cards.environment(cards.card("h200"))).returncode)
    import estimates

    # Forks have what takes most of a cell's time: torch and transformers.
    import torch  # noqa: F401
    import transformers.models.auto.modeling_auto  # noqa: F401

    estimates.CELL_SECONDS = 90
    kept = {}
    for name, found in estimates.estimated(wanted(not asked.infer, asked.only, [int(word) for word in asked.part.split("/")]), None):
        error = found.get("error")
        kind = "answered" if error is None else "elsewhere" if any(word in error for word in _ELSEWHERE) else "refused" if found.get("refused") else "failed"
        said = " | ".join(found.get("assumed", [])) if error is None else error
        kept[name] = {"kind": kind, "said": said, "recipe": found.get("recipe"), "cpu": round(found["cpu"], 1)}
        print(f"{kind:<10} {name:<32} {found['cpu']:5.1f} s  {' '.join(said.split())[:330]}", flush=True)
        if asked.out:
            Path(asked.out).write_text(json.dumps(kept, indent=0))
    counts = {kind: sum(row["kind"] == kind for row in kept.values()) for kind in ("answered", "refused", "failed", "elsewhere")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))


if __name__ == "__main__":
    main()
