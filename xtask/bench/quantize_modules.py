"""Writes testdata/weights/modules.tsv: which 2-D weights of transformers' architectures are no Linear layers.

Makes every model that transformers' AutoModels know from its default configuration, without memory (the meta device),
and looks at the class of the module of each 2-D `*.weight`. Names are told once: numbers become 0, and of names that
end in the same two parts the first is kept. Lines are

    kind, model type, name, rows, columns, 1 if the rows are a vocabulary's

with kind `other` for what is no Linear layer, `linear` for Linear layers whose last name three model types use, and
`tied` for Linear layers that share an embedding's weight, so that no file has them.

Usage: quantize_modules.py       needs torch and transformers; takes two minutes
"""

import re
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import configuration_auto, modeling_auto

OUT = Path(__file__).parents[2] / "testdata/weights/modules.tsv"
MAPPINGS = [
    "CAUSAL_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "MASKED_LM",
    "IMAGE_TEXT_TO_TEXT",
    "SEQUENCE_CLASSIFICATION",
    "IMAGE_CLASSIFICATION",
    "SPEECH_SEQ_2_SEQ",
    "CTC",
]


def classes(config: Any) -> list[Any]:
    found: list[Any] = []
    mappings = [getattr(modeling_auto, f"MODEL_FOR_{name}_MAPPING") for name in MAPPINGS]
    for mapping in [*mappings, modeling_auto.MODEL_MAPPING]:
        kinds = mapping.get(config, None) or []
        for kind in kinds if isinstance(kinds, (tuple, list)) else [kinds]:
            if kind not in found:
                found.append(kind)
    return found[:4]


def vocabularies(config: Any) -> set[int]:
    found = set()
    for key, value in config.items():
        if isinstance(value, dict):
            found |= vocabularies(value)
        elif isinstance(key, str) and "vocab_size" in key and isinstance(value, int):
            found.add(value)
    return found


def main() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    others: dict[tuple[str, ...], str] = {}
    linear: dict[str, tuple[str, set[str]]] = {}
    tied: dict[str, set[str]] = defaultdict(set)
    models = failed = 0
    for model_type in sorted(configuration_auto.CONFIG_MAPPING_NAMES):
        try:
            config_class = configuration_auto.CONFIG_MAPPING[model_type]
            kinds = classes(config_class)
        except Exception:  # packages that are not here
            failed += 1
            continue
        for kind in kinds:
            try:
                config = config_class()
                with torch.device("meta"):
                    model = kind(config)
            except Exception:  # a default that makes no model
                failed += 1
                continue
            models += 1
            sizes, modules = vocabularies(config.to_dict()), dict(model.named_modules())
            shared = getattr(model, "all_tied_weights_keys", None) or {}
            for name, value in model.named_parameters(remove_duplicate=False):
                if value.dim() != 2 or not name.endswith(".weight"):
                    continue
                module = modules[name.rpartition(".")[0]]
                plain = re.sub(r"(?<=\.)\d+(?=\.)", "0", name)
                is_linear = isinstance(module, torch.nn.Linear)
                is_vocabulary = int(value.shape[0] in sizes)
                line = f"{model_type}\t{plain}\t{value.shape[0]}\t{value.shape[1]}\t{is_vocabulary}"
                if not is_linear:
                    others.setdefault((*plain.split(".")[-3:], str(is_vocabulary)), line)
                elif name in shared:
                    tied[plain].add(model_type)
                else:
                    first, types = linear.setdefault(plain.split(".")[-2], (line, set()))
                    types.add(model_type)
    lines = [f"other\t{line}" for line in others.values()]
    lines += [f"linear\t{line}" for line, types in linear.values() if len(types) >= 3]
    for name, types in tied.items():
        lines += [f"tied\t{model_type}\t{name}\t0\t0\t1" for model_type in types]
    OUT.write_text("\n".join(sorted(lines)) + "\n")
    print(f"{models} models of transformers {transformers.__version__}, {failed} could not be made, {len(lines)} lines")


if __name__ == "__main__":
    main()
