"""Writes quantize.json: what compressed-tensors makes of made weights, as checksums, and its quantization_config.

Needs torch, compressed-tensors 0.20.0, numpy and xxhash. `crates/gapless-weights/tests/quantize.rs` makes the same
weights from the same numbers, so that the tests need none of these.

Usage: python quantize.py [FOLDER]      FOLDER also gets each scheme's tensors, for a look at a difference
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import xxhash
from compressed_tensors import __version__
from compressed_tensors.compressors import compress_module
from compressed_tensors.quantization import (
    QuantizationConfig,
    QuantizationScheme,
    QuantizationStatus,
    QuantizationStrategy,
    initialize_module_for_quantization,
    preset_name_to_scheme,
)
from compressed_tensors.quantization.utils import (
    calculate_qparams,
    generate_gparam,
    maybe_pad_tensor_for_block_quant,
)

HERE = Path(__file__).parent
PRESETS = {
    "fp8": "FP8_DYNAMIC",
    "fp8-block": "FP8_BLOCK",
    "w8a8": "W8A8",
    "w4a16": "W4A16",
    "mxfp4": "MXFP4",
    "nvfp4": "NVFP4A16",
}
# Columns must be a multiple of this.
MULTIPLE = {"fp8": 1, "fp8-block": 1, "w8a8": 1, "w4a16": 128, "mxfp4": 32, "nvfp4": 16}
# Bits of the exponent and of the mantissa, and the exponent of most values.
TYPES = {"BF16": (8, 7, 121), "F16": (5, 10, 9), "F32": (8, 23, 121)}
FAMILIES = 6


def mixed(seed: int, count: int) -> np.ndarray:
    """Numbers 0 to `count` of splitmix64."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) + np.uint64(seed)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def made(dtype: str, family: int, seed: int, rows: int, columns: int) -> np.ndarray:
    """Bits of a tensor.

    Families: 0 like trained weights, 1 with outliers, 2 with zeros of both signs in runs, 3 near and below the
    smallest normal number, 4 large, 5 with two bits of mantissa, which gives ties.
    """
    exponent_bits, mantissa_bits, centre = TYPES[dtype]
    z = mixed(seed, rows * columns)
    low = (z >> np.uint64(32)) & np.uint64(0xFFF) | np.uint64(0x1000)
    zeros = np.zeros(len(z), dtype=np.int64)
    for bit in range(13):
        zeros += ((low & np.uint64((2 << bit) - 1)) == 0).astype(np.int64)
    if family == 3:
        centre = 3
    elif family == 4:
        centre = (1 << exponent_bits) - 8
    exponent = centre - zeros
    if family == 1:
        exponent += np.where((z >> np.uint64(44)) % np.uint64(97) == 0, 5, 0)
    exponent = np.clip(exponent, 0, (1 << exponent_bits) - 2).astype(np.uint64)
    mantissa = (z >> np.uint64(1)) & np.uint64((1 << mantissa_bits) - 1)
    if family == 5:
        mantissa &= np.uint64(3 << (mantissa_bits - 2))
    bits = exponent << np.uint64(mantissa_bits) | mantissa
    if family == 2:
        bits = np.where((np.arange(len(z)) // 64) % 3 == 0, np.uint64(0), bits)
    bits |= (z & np.uint64(1)) << np.uint64(exponent_bits + mantissa_bits)
    width = np.uint32 if dtype == "F32" else np.uint16
    return bits.astype(width).reshape(rows, columns)


def tensor(dtype: str, bits: np.ndarray) -> torch.Tensor:
    types = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    signed = bits.view(np.int32 if dtype == "F32" else np.int16)
    return torch.from_numpy(signed.copy()).view(types[dtype])


def observed(weight: torch.Tensor, scheme: QuantizationScheme) -> torch.Tensor:
    """The weight with the values of each scale in its last dimension."""
    args = scheme.weights
    if args.strategy == QuantizationStrategy.CHANNEL:
        return weight.unsqueeze(-2)
    if args.strategy == QuantizationStrategy.BLOCK:
        height, width = args.block_structure
        weight = maybe_pad_tensor_for_block_quant(weight, args.block_structure)
        rows, columns = weight.shape[0] // height, weight.shape[1] // width
        return weight.reshape(rows, height, columns, width).transpose(1, 2).flatten(-2)
    return weight.unflatten(-1, (-1, args.group_size))


@torch.no_grad()
def layer(weight: torch.Tensor, scheme: QuantizationScheme) -> torch.nn.Linear:
    """A Linear layer of this weight, prepared for the scheme."""
    rows, columns = weight.shape
    module = torch.nn.Linear(columns, rows, bias=False, dtype=weight.dtype)
    module.weight.copy_(weight)
    initialize_module_for_quantization(module, scheme, force_zero_point=False)
    return module


@torch.no_grad()
def compressed(
    module: torch.nn.Linear, weight: torch.Tensor, scheme: QuantizationScheme
) -> dict[str, torch.Tensor]:
    """The layer as compressed-tensors stores it; scales are those of a min-max observer."""
    values = observed(weight, scheme)
    low, high = values.amin(-1), values.amax(-1)
    whole = None
    if scheme.weights.strategy == QuantizationStrategy.TENSOR_GROUP:
        most = torch.max(high.max(), -low.min())
        whole = generate_gparam(-most.reshape(1), most.reshape(1))
        module.weight_global_scale.copy_(whole)
    scale, _ = calculate_qparams(low, high, scheme.weights, global_scale=whole)
    module.weight_scale.copy_(scale)
    module.quantization_status = QuantizationStatus.FROZEN
    compress_module(module)
    return dict(module.state_dict())


def name_of(kind: torch.dtype) -> str:
    names = {
        torch.float8_e4m3fn: "F8_E4M3",
        torch.bfloat16: "BF16",
        torch.float16: "F16",
        torch.float32: "F32",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.int32: "I32",
        torch.int64: "I64",
    }
    return names[kind]


def raw(value: torch.Tensor) -> bytes:
    return value.detach().contiguous().view(torch.uint8).numpy().tobytes()


def shapes(scheme: str, base: int) -> list[tuple[int, int]]:
    """30 shapes: odd numbers of rows, few and many columns."""
    z = [int(number) for number in mixed(base, 60)]
    step = MULTIPLE[scheme]
    longest = 300 if scheme == "fp8-block" else 90
    result = []
    for at in range(30):
        rows = 1 + z[2 * at] % (260 if scheme == "fp8-block" else 41)
        columns = 1 + z[2 * at + 1] % longest if step == 1 else step * (1 + z[2 * at + 1] % max(3, 320 // step))
        result.append((rows, columns))
    return result


def main() -> None:
    golden: dict = {"compressed_tensors": __version__, "cases": {}, "config": {}}
    for scheme, preset in PRESETS.items():
        cases = []
        # The second 30 were set aside; all of them agreed at the first look.
        for base in (1000, 900_000):
            for at, (rows, columns) in enumerate(shapes(scheme, base)):
                dtype = list(TYPES)[at % 3]
                family = (at // 3) % FAMILIES
                seed = base + 7919 * at
                bits = made(dtype, family, seed, rows, columns)
                args = preset_name_to_scheme(preset, ["Linear"])
                parts = {}
                weight = tensor(dtype, bits)
                stored = compressed(layer(weight, args), weight, args)
                for name, value in sorted(stored.items()):
                    digest = xxhash.xxh3_64(raw(value)).hexdigest()
                    parts[name] = [name_of(value.dtype), list(value.shape), digest]
                if len(sys.argv) > 1:
                    torch.save(stored, Path(sys.argv[1]) / f"{scheme}-{base}-{at}.pt")
                cases.append(
                    {
                        "dtype": dtype,
                        "family": family,
                        "seed": seed,
                        "shape": [rows, columns],
                        "input": xxhash.xxh3_64(bits.tobytes()).hexdigest(),
                        "parts": parts,
                    }
                )
        golden["cases"][scheme] = cases
        config = QuantizationConfig(
            config_groups={"group_0": args},
            quantization_status=QuantizationStatus.COMPRESSED,
            format=args.format,
            ignore=["lm_head"],
        )
        golden["config"][scheme] = {**config.model_dump(mode="json"), "version": __version__}
    text = json.dumps(golden, sort_keys=True, separators=(",", ":"))
    (HERE / "quantize.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
