"""Odd but legal configurations of every type that `gapless fit` reads, and how many parameters transformers makes of them.

    python odd.py SEED | gzip -9n > ../odd.jsonl.gz

Of each type a small configuration is taken, then the same with one key changed, for every key and several values; then
several keys at once, drawn with SEED. A row has the configuration and the count. What transformers itself cannot build
is left out.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any

import transformers
from parameters import build
from transformers import AutoConfig

TYPES = """
albert bart bert bloom camembert clip codegen cohere cohere2 convnext deberta-v2 deepseek_v2 deepseek_v3
dinov2 distilbert electra falcon gemma gemma2 gemma3_text gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj
granite llama llama4_text mistral mixtral modernbert mpt mt5 olmo olmo2 olmoe opt phi phi3 phimoe qwen2
qwen2_moe qwen3 qwen3_moe qwen3_next resnet roberta smollm3 stablelm starcoder2 t5 vit whisper xlm-roberta
""".split()
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
# What a type needs to be small, or to be built at all.
BASE: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 2},
    "deepseek_v3": {"num_experts_per_tok": 2},
    "clip": {"text_config": {}, "vision_config": {}},
    "qwen3_next": {"num_experts_per_tok": 2},
    "gpt_neo": {"num_layers": 4, "attention_types": [[["global", "local"], 2]]},
}
# Types with a token beyond a small vocabulary.
LARGE_VOCABULARY = ("phi3", "modernbert", "whisper", "bart")
# Never sizes of a parameter.
SKIPPED = ("model_type", "transformers_version", "architectures", "id2label", "label2id", "rope_parameters", "dtype", "layer_types", "attention_types")
ALWAYS: list[tuple[str, Any]] = [
    ("tie_word_embeddings", True),
    ("tie_word_embeddings", False),
    ("tie_word_embeddings", None),
    ("dtype", "float16"),
    ("torch_dtype", "bfloat16"),
    ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
    ("quantization_config", {"quant_method": "gptq", "bits": 4, "group_size": 128}),
]
COMBINED = 25


def small(kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A small configuration of a type, and all of its keys."""
    base = {"model_type": kind, **BASE.get(kind, {})}
    keys = AutoConfig.for_model(**base).to_dict()
    for key in LAYERS if kind != "gpt_neo" else ():
        if isinstance(keys.get(key), int):
            base[key] = 4
    for key in EXPERTS:
        if isinstance(keys.get(key), int):
            base[key] = 8
    for key in ("encoder_layers", "decoder_layers"):
        if isinstance(keys.get(key), int):
            base[key] = 2
    if isinstance(keys.get("vocab_size"), int) and kind not in LARGE_VOCABULARY:
        base["vocab_size"] = 1000
    return base, {**keys, **base}


def values(key: str, value: Any, keys: dict[str, Any]) -> list[Any]:
    """Other values of a key."""
    if isinstance(value, bool):
        return [not value, None]
    if isinstance(value, int):
        found = {2 * value, value // 2, 1, value + (8 if value >= 64 else 1)}
        if "key_value" in key or key == "num_kv_heads":
            found |= {keys.get("num_attention_heads", 8), 2}
        return [*sorted(found - {value, 0}), 0, None]
    if isinstance(value, str):
        return ["relu", "gelu", "silu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "relu2", "tanh"] if "act" in key else []
    if value is None:
        if any(word in key for word in ("dim", "size", "heads", "rank", "window", "inner", "length")):
            return [64, 16]
        return [True, False] if any(word in key for word in ("bias", "use", "tie")) else []
    if isinstance(value, list) and value and all(isinstance(one, int) for one in value):
        return [value[:-1], [2 * one for one in value], value[::-1]]
    return []


def changed(kind: str, chance: random.Random) -> Iterator[dict[str, Any]]:
    base, keys = small(kind)
    yield base
    fixed = (*LAYERS, *SKIPPED)
    single = [(key, other) for key, value in keys.items() if key not in fixed and not key.startswith("_") for other in values(key, value, keys)]
    single += ALWAYS
    for key, other in single:
        yield {**base, key: other}
    for _ in range(COMBINED):
        yield {**base, **dict(chance.sample(single, k=chance.choice((2, 3, 4))))}


def main() -> None:
    """A row for each configuration that can be built."""
    transformers.logging.set_verbosity_error()
    chance = random.Random(int(sys.argv[1]))
    for kind in TYPES:
        for config in changed(kind, chance):
            try:
                model = build(config)
            except Exception:
                # Not legal: there is nothing to compare with.
                continue
            print(json.dumps({"config": config, "count": sum(p.numel() for p in model.parameters())}), flush=True)


if __name__ == "__main__":
    main()
