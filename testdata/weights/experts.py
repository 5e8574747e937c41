"""Writes experts.json: what llm-compressor and compressed-tensors make of fused experts, as checksums.

Needs torch, compressed-tensors 0.20.0, llmcompressor 0.14.0.1, numpy and xxhash. Experts that are stored as Linear
layers have them ([E, 2I, H]) are split by llm-compressor's model-free path. Its module of experts splits the transposed
ones ([E, H, 2I]), by halves as of Llama 4 or in turns as of gpt-oss. The model-free path quantises the result, under
names by which it gives gate and up of an expert one NVFP4 scale: it does that for `mlp.gate_proj` but not for
`experts.0.gate_proj`, whereas engines ask for one scale of both.
`crates/gapless-weights/tests/quantize_experts.rs` makes the same weights.

Usage: python experts.py
"""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import torch
import xxhash
from compressed_tensors import __version__
from llmcompressor import __version__ as llmcompressor
from llmcompressor.entrypoints.model_free.converter import ModelFreePtqConverter, split_fused_moe_experts
from llmcompressor.entrypoints.model_free.validate import validate_config
from llmcompressor.modeling.moe.gpt_oss import GptOssExpertMLP
from llmcompressor.modeling.moe.linear_experts import ExpertMLPWithGate
from quantize import MULTIPLE, PRESETS, made, name_of, raw, tensor

HERE = Path(__file__).parent
PARENT = "model.layers.0.mlp.experts"
EXPERTS = 2


def stored(dtype: str, family: int, seed: int, shape: list[int]) -> torch.Tensor:
    bits = made(dtype, family, seed, shape[0], shape[1] * (shape[2] if len(shape) > 2 else 1))
    return tensor(dtype, bits).reshape(shape)


@torch.no_grad()
def apart(layout: str, fused: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The matrices and biases of every expert, as llm-compressor's modules of experts hold them."""
    gate_up, down = fused[f"{PARENT}.gate_up_proj"], fused[f"{PARENT}.down_proj"]
    has_bias = f"{PARENT}.down_proj_bias" in fused
    experts = SimpleNamespace(is_transposed=True, has_bias=has_bias, gate_up_proj=gate_up, down_proj=down)
    if has_bias:
        experts.gate_up_proj_bias = fused[f"{PARENT}.gate_up_proj_bias"]
        experts.down_proj_bias = fused[f"{PARENT}.down_proj_bias"]
    kind = GptOssExpertMLP if layout == "columns-pairs" else ExpertMLPWithGate
    found = {}
    for index in range(EXPERTS):
        expert = kind(gate_up.shape[1], down.shape[1], has_bias, lambda x: x, gate_up.dtype)
        expert.copy_from_experts_module(experts, index)
        found.update({f"{PARENT}.{index}.{name}": value for name, value in expert.state_dict().items()})
    return found


def main() -> None:
    golden: dict = {"compressed_tensors": __version__, "llmcompressor": llmcompressor, "cases": []}
    seed = 77_000
    for scheme, preset in PRESETS.items():
        for layout in ("rows-halves", "columns-halves", "columns-pairs"):
            for at, dtype in enumerate(("BF16", "F16", "F32")):
                step = MULTIPLE[scheme]
                hidden, inner = (step * (1 + at % 2), step * 2) if step > 1 else (37 + at, 10 + 3 * at)
                shapes = {"gate_up_proj": [EXPERTS, 2 * inner, hidden], "down_proj": [EXPERTS, hidden, inner]}
                if layout != "rows-halves":
                    shapes = {name: [shape[0], shape[2], shape[1]] for name, shape in shapes.items()}
                if layout == "columns-pairs":
                    shapes["gate_up_proj_bias"] = [EXPERTS, 2 * inner]
                    shapes["down_proj_bias"] = [EXPERTS, hidden]
                fused, inputs = {}, []
                for name, shape in shapes.items():
                    seed += 7919
                    fused[f"{PARENT}.{name}"] = stored(dtype, at, seed, shape)
                    inputs.append({"name": f"{PARENT}.{name}", "shape": shape, "seed": seed})
                split = split_fused_moe_experts(dict(fused)) if layout == "rows-halves" else apart(layout, fused)
                tensors = {re.sub(r"\.(\d)\.(\w+_proj)", r".\1.mlp.\2", name): value for name, value in split.items()}
                done = ModelFreePtqConverter(validate_config(None, preset, [])).process(tensors)
                parts = {}
                for name, value in sorted(done.items()):
                    digest = xxhash.xxh3_64(raw(value)).hexdigest()
                    short = name.removeprefix(f"{PARENT}.").replace(".mlp.", ".")
                    parts[short] = [name_of(value.dtype), list(value.shape), digest]
                golden["cases"].append(
                    {"scheme": scheme, "layout": layout, "dtype": dtype, "family": at, "inputs": inputs, "parts": parts}
                )
    text = json.dumps(golden, sort_keys=True, separators=(",", ":"))
    (HERE / "experts.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
