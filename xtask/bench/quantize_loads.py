"""Whether transformers loads what `gapless weights quantize` writes: small made models of many architectures.

Each model is saved by transformers with random weights, quantised, and loaded again in two ways: as it is (the layers
stay compressed until the first forward pass), and with `dequantize=True`. A third copy holds the same weights as plain
tensors, decoded by this script from the format's description alone. A load counts as right if no tensor is missing,
unexpected or of another shape, if every parameter equals the plain copy's, and if `dequantize=True` gives the plain
copy's outputs. Schemes with quantised activations change outputs of the first way, so its parameters alone count.

Usage: quantize_loads.py GAPLESS [--only NAME,NAME] [--schemes S,S] [--verbose]
Prints a table. Exits with 1 if a cell fails that `quantize_models.py` does not list, or one loads that it lists.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import transformers
from quantize_models import CASES, Case, refused
from safetensors.torch import load_file, save_file

SCHEMES = ["fp8", "fp8-block", "w8a8", "w4a16", "mxfp4", "nvfp4"]
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Two values of each byte, the low half first."""
    return torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()


def decoded(parts: dict[str, torch.Tensor], scheme: str, dtype: torch.dtype) -> torch.Tensor:
    """The matrix that a module's stored parts mean, in the type of the model."""
    scale = parts["weight_scale"]
    if scheme in ("fp8", "w8a8"):
        return (parts["weight"].to(scale.dtype) * scale).to(dtype)
    if scheme == "fp8-block":
        weight = parts["weight"]
        wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        return (weight.to(scale.dtype) * wide[: weight.shape[0], : weight.shape[1]]).to(dtype)
    if scheme == "w4a16":
        rows, columns = parts["weight_shape"].tolist()
        shifts = torch.arange(0, 32, 4)
        codes = (parts["weight_packed"].long().unsqueeze(-1) >> shifts & 15).flatten(-2)[:, :columns] - 8
        return (codes.to(scale.dtype).view(rows, -1, 128) * scale.unsqueeze(-1)).view(rows, columns).to(dtype)
    values = FP4[nibbles(parts["weight_packed"])].to(dtype)
    rows, columns = values.shape
    if scheme == "mxfp4":
        factors = torch.exp2(scale.to(torch.float32) - 127).to(dtype)
        return (values.view(rows, -1, 32) * factors.unsqueeze(-1)).view(rows, columns)
    factors = (scale.to(torch.float32) / parts["weight_global_scale"]).to(dtype)
    return (values.view(rows, -1, 16) * factors.unsqueeze(-1)).view(rows, columns)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found.update(load_file(file))
    return found


def plain_copy(case: Case, source: Path, quantised: Path, scheme: str, to: Path) -> int:
    """A model of the same weights without quantisation. Gives how many matrices were quantised."""
    before, after = tensors_of(source), tensors_of(quantised)
    dense: dict[str, torch.Tensor] = {}
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in after.items():
        module, _, leaf = name.rpartition(".")
        if f"{module}.weight_scale" in after and leaf.startswith("weight"):
            modules.setdefault(module, {})[leaf] = value
        else:
            dense[name] = value
    for module, parts in modules.items():
        dense[f"{module}.weight"] = decoded(parts, scheme, torch.bfloat16)
    fused = {name: value for name, value in before.items() if name not in dense}
    for name, value in fused.items():
        dense[name] = case.fuse(name, value, dense)
    to.mkdir()
    for file in source.iterdir():
        if file.suffix == ".json" and "index" not in file.name:
            shutil.copy(file, to / file.name)
    metadata = {"format": "pt"}
    save_file({name: dense[name].contiguous() for name in before}, to / "model.safetensors", metadata)
    return len(modules)


def loaded(case: Case, folder: Path, dequantize: bool) -> tuple[torch.nn.Module, list[str]]:
    options = {}
    if dequantize:
        options["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    model, info = case.model.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True, **options)
    wrong = []
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        found = info.get(key) or []
        if found:
            wrong.append(f"{key}: {len(found)}, such as {sorted(map(str, found))[0]}")
    return model.eval(), wrong


@torch.no_grad()
def outputs(case: Case, model: torch.nn.Module) -> torch.Tensor:
    torch.manual_seed(5)
    inputs = case.inputs()
    inputs = {name: value.bfloat16() if value.is_floating_point() else value for name, value in inputs.items()}
    result = model(**inputs)
    found = result.logits if "logits" in result else result.last_hidden_state
    return found.float()


@torch.no_grad()
def different(case: Case, model: torch.nn.Module, plain: torch.nn.Module) -> list[str]:
    """Parameters of the plain copy that the loaded model has not, or has otherwise."""
    mine, wrong = dict(model.named_parameters()), []
    for name, value in plain.named_parameters():
        if name not in mine and f"{name.rpartition('.')[0]}.0.down_proj.weight" in mine:
            mine[name] = case.fuse(name, value, dict(mine))  # transformers has one module for each expert of Llama 4
        if name not in mine:
            wrong.append(f"{name} is not there")
        # One place of bf16 apart at most: codes and scales are further from each other.
        elif mine[name].shape != value.shape or not torch.allclose(mine[name].float(), value.float(), 2**-7, 1e-9):
            wrong.append(f"{name} differs")
    return wrong


def attempt(case: Case, folder: Path, plain: torch.nn.Module, dequantize: bool) -> str:
    """Empty where the load is right."""
    try:
        model, wrong = loaded(case, folder, dequantize)
        if wrong:
            return wrong[0]
        found = outputs(case, model)
        wrong = different(case, model, plain)
        if wrong:
            return f"{len(wrong)} parameters: {wrong[0]}"
        if not found.isfinite().all():
            return "outputs are not finite"
        expected = outputs(case, plain)
        apart = (found - expected).norm() / expected.norm()
        # compressed-tensors rounds the quotient of NVFP4's two scales to bf16 in another order.
        if dequantize and apart > (0.03 if case.scheme == "nvfp4" else 0.005):
            return f"outputs are {apart:.3f} from those of the plain weights"
    except Exception as error:  # the table tells what happened
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("gapless")
    parser.add_argument("--only", default="")
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--verbose", action="store_true")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    names = [name for name in CASES if not asked.only or name in asked.only.split(",")]
    bad = 0
    for name in names:
        case = CASES[name]
        for scheme in asked.schemes.split(","):
            with tempfile.TemporaryDirectory() as room:
                source, quantised, plain = (Path(room) / part for part in ("source", "quantised", "plain"))
                torch.manual_seed(1)
                case.scheme = scheme
                case.save(source)
                command = [asked.gapless, "weights", "quantize", source, "-o", quantised, "--scheme", scheme]
                command += ["--ignore", case.ignore] if case.ignore else []
                made = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False)
                if made.returncode != 0:
                    is_right = refused(name)
                    reason = made.stderr.strip().splitlines()[0]
                    cells = ["refused" if is_right else f"refused: {reason}"] * 2
                    count = 0
                else:
                    count = plain_copy(case, source, quantised, scheme, plain)
                    model, wrong = loaded(case, plain, dequantize=False)
                    assert not wrong, (name, wrong)
                    cells = [attempt(case, quantised, model, dequantize) for dequantize in (False, True)]
                    is_right = count > 0 and not refused(name)
                    for way, cell in enumerate(cells):
                        expected = case.expected(scheme, way)
                        is_right &= (cell == "") == (expected == "")
                    if asked.verbose:
                        left = json.loads(made.stdout)["left"]
                        for item in left:
                            print(f"    left {item['name']}: {item['reason']}")
            bad += not is_right
            mark = "" if is_right else "  <- not as expected"
            shown = [cell or "loads" for cell in cells]
            print(f"{name:16} {scheme:10} {count:4} matrices  as it is: {shown[0]}; dequantised: {shown[1]}{mark}")
            sys.stdout.flush()
    print(f"{bad} cells are not as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
