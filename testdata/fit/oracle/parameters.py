"""Parameters that transformers makes of configurations: the oracle of `gapless fit`.

    python parameters.py cases.jsonl | gzip -9n > ../counted.jsonl.gz
    python parameters.py ../../../crates/gapless-fit/src/read/presets.txt > ../counts.jsonl

The first file has one JSON object a line: `{"config": {...}}`. The second is the table of built-in names. Each model is
built on the meta device with the class that its `model_type` has for the usual task. A row of the output has the name
or the configuration, the class and the count; and without a name every parameter with its shape, as
`named_parameters()` lists them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers import AutoConfig

# The first of these that knows a configuration builds it.
TASKS = [
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageClassification",
    "AutoModel",
]
# Where a configuration has heads for several tasks, the one that its checkpoints have.
USUAL = {
    "electra": "AutoModelForPreTraining",
    "bart": "AutoModelForSeq2SeqLM",
    "whisper": "AutoModelForSpeechSeq2Seq",
    "dinov2": "AutoModel",
    "clip": "AutoModel",
    "siglip": "AutoModel",
}
# Classes of causal models that are encoders with a mask: their usual head is the masked one.
MASKED = {"bert", "roberta", "xlm-roberta", "camembert"}


def build(config: dict[str, Any]) -> torch.nn.Module:
    """The model of a configuration, without memory."""
    made = AutoConfig.for_model(**config)
    kind = config["model_type"]
    tasks = ["AutoModelForMaskedLM"] if kind in MASKED else [USUAL[kind]] if kind in USUAL else TASKS
    wrong: Exception | None = None
    for task in tasks:
        try:
            with torch.device("meta"):
                return getattr(transformers, task).from_config(made)
        except ValueError as error:
            wrong = error
    raise ValueError(f"no class for {kind}") from wrong


def cases(path: str) -> Iterator[dict[str, Any]]:
    """The cases of a file, or of the table of names without torchvision's."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if path.endswith(".jsonl"):
                yield json.loads(line)
            elif ": " in line and not line.startswith("#"):
                names, config = line.split(": ", 1)
                case = {"name": names.split(" ")[0], "config": json.loads(config)}
                if not case["config"]["model_type"].startswith("torchvision_"):
                    yield case


def main() -> None:
    """A row for each case."""
    for case in cases(sys.argv[1]):
        model = build(case["config"])
        count = sum(p.numel() for p in model.parameters())
        out = {"class": type(model).__name__, "count": count}
        if "name" in case:
            out = {"name": case["name"], **out}
        else:
            parameters = [(name, list(p.shape)) for name, p in model.named_parameters()]
            out = {"config": case["config"], **out, "parameters": parameters}
        print(json.dumps(out), flush=True)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}", file=sys.stderr)


if __name__ == "__main__":
    main()
