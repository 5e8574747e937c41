"""Writes sparse.json: what compressed-tensors 0.11.0 stores of sparse weights, as checksums, and its configuration.

Needs torch, compressed-tensors 0.11.0 (later releases have no sparse compressors), numpy and xxhash. The weights are
those of quantize.py, whose functions need nothing else of that file's packages.

Usage: python sparse.py
"""

import ast
import json
import types
from pathlib import Path

import numpy as np
import torch
import xxhash
from compressed_tensors import __version__
from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import Sparse24BitMaskTensor
from compressed_tensors.compressors.sparse_compressors.sparse_bitmask import BitmaskTensor
from compressed_tensors.config import BitmaskConfig, Sparse24BitMaskConfig

HERE = Path(__file__).parent
# Columns must be a multiple of this.
MULTIPLE = {"sparse-24": 4, "sparse-bitmask": 1}


def weights_of_quantize() -> types.SimpleNamespace:
    """Functions of quantize.py, without what it imports of another release of compressed-tensors."""
    tree = ast.parse((HERE / "quantize.py").read_text())
    wanted = {"mixed", "made", "tensor", "name_of", "raw", "TYPES", "FAMILIES"}
    found = [
        node
        for node in tree.body
        if getattr(node, "name", None) in wanted
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in wanted)
    ]
    names: dict = {"np": np, "torch": torch}
    exec(compile(ast.Module(found, []), "quantize.py", "exec"), names)  # noqa: S102
    return types.SimpleNamespace(**{name: names[name] for name in wanted})


def halved(weight: torch.Tensor) -> torch.Tensor:
    """The larger half of each row, the odd value too; of equal values the first ones."""
    columns = weight.shape[1]
    order = weight.abs().float().sort(dim=1, descending=True, stable=True).indices
    kept = torch.zeros_like(weight, dtype=torch.bool)
    kept.scatter_(1, order[:, : columns - columns // 2], True)
    return torch.where(kept, weight, torch.zeros_like(weight))


def main() -> None:
    of = weights_of_quantize()
    golden: dict = {"compressed_tensors": __version__, "cases": {}, "config": {}}
    for scheme, step in MULTIPLE.items():
        cases = []
        # The second 30 were set aside; all of them agreed at the first look.
        for base in (1000, 900_000):
            z = [int(number) for number in of.mixed(base, 60)]
            for at in range(30):
                rows, columns = 1 + z[2 * at] % 41, step * (1 + z[2 * at + 1] % (90 // step))
                dtype, family, seed = list(of.TYPES)[at % 3], (at // 3) % of.FAMILIES, base + 7919 * at
                bits = of.made(dtype, family, seed, rows, columns)
                weight = of.tensor(dtype, bits)
                if scheme == "sparse-24":
                    stored = Sparse24BitMaskTensor.from_dense(weight).dict("module.weight")
                else:
                    stored = BitmaskTensor.from_dense(halved(weight)).dict("module")
                parts = {
                    name.removeprefix("module."): [of.name_of(value.dtype), list(value.shape), xxhash.xxh3_64(of.raw(value)).hexdigest()]
                    for name, value in sorted(stored.items())
                }
                digest = xxhash.xxh3_64(bits.tobytes()).hexdigest()
                cases.append({"dtype": dtype, "family": family, "seed": seed, "shape": [rows, columns], "input": digest, "parts": parts})
        golden["cases"][scheme] = cases
        config = {"sparse-24": Sparse24BitMaskConfig, "sparse-bitmask": BitmaskConfig}[scheme]
        # As ModelCompressor.update_config writes it for a model that is sparse and not quantised.
        golden["config"][scheme] = {
            "version": __version__,
            "quant_method": "compressed-tensors",
            "sparsity_config": config(targets=["Linear"], ignore=["lm_head"], global_sparsity=0.5).model_dump(),
            "transform_config": {},
        }
    text = json.dumps(golden, sort_keys=True, separators=(",", ":"))
    (HERE / "sparse.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
