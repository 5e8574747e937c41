"""From a configuration to a model and its batch: `gapless estimate config.json`. docs/estimate.md describes it.

The installed transformers or diffusers makes the model, without weights and without the network; code that comes with a
checkpoint never runs. Sentences say what had to be chosen (class, batch, loss).
"""

import importlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional

from .._errors import GaplessError
from . import batches, latents
from .optimizers import optimizer
from .recipe import Recipe, make, words
from .sizes import Sizes
from .steps import Told, dtype_of, infer, train

CHECKPOINTING = ("none", "full")
ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}
# Classes by their purpose, in the order in which one is chosen if the configuration names none.
_PURPOSES = (
    "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SPEECH_SEQ_2_SEQ", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "CAUSAL_LM", "CTC",
    "ZERO_SHOT_IMAGE_CLASSIFICATION", "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "AUDIO_CLASSIFICATION",
    "SEMANTIC_SEGMENTATION", "UNIVERSAL_SEGMENTATION", "OBJECT_DETECTION", "DEPTH_ESTIMATION", "TEXT_TO_WAVEFORM",
    "TIME_SERIES_PREDICTION", "SEQUENCE_CLASSIFICATION", "PRETRAINING",
)  # fmt: skip
_SCRIPT = "write a script that trains it and run `gapless estimate script.py`"


@dataclass(frozen=True)
class Settings:
    """The run of a configuration that is asked for, in the words of `gapless fit`."""

    train: bool = True
    sizes: Sizes = field(default_factory=Sizes)
    precision: str = "bf16"
    optimizer: str = "adamw"
    checkpointing: str = "none"
    attention: Optional[str] = None
    accumulation: int = 1


@dataclass
class Work:
    """A model with its settings, batches and loss. `said` are sentences about the choices."""

    model: Any
    settings: Settings
    recipes: "Iterator[Recipe]"
    loss: "Callable[[Any, Any], Any]"
    said: "list[str]"
    # How the loss was computed, after the first step.
    told_loss: "list[str]"

    def optimizer(self, parameters: Any) -> Any:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        return optimizer(self.settings.optimizer, self.model)(trained)

    def batch(self, recipe: Recipe) -> "Callable[[Any, Any], Any]":
        return lambda device, dtype: make(recipe, device, dtype)

    def run(self, recipe: Recipe, steps: int, told: Told) -> None:
        """Trains the model, which is on the card, or runs it, with the batch of this recipe."""
        given, precision = self.batch(recipe), self.settings.precision
        if self.settings.train:
            train(self.model, given, self.loss, self.optimizer, steps, precision, told, self.settings.accumulation)
        else:
            infer(self.model, given, self.loss, steps, precision, told)

    def sentences(self, recipe: Recipe) -> "list[str]":
        """Sentences about the run."""
        lengths = "training" if self.settings.train else "one forward pass without gradients at a time"
        shown = {name: entry for name, entry in recipe.items() if entry is not None}
        return [*self.said, f"{lengths} in {self.settings.precision}; a made-up batch: {words(shown)}", *self.told_loss[:1]]


def is_configuration(path: str) -> bool:
    """True if a path is a configuration, and not a script."""
    return os.path.isdir(path) or path.endswith(".json")


def read(path: str, text: Optional[str] = None) -> "tuple[Path, dict[str, Any]]":
    """The configuration's file and its contents; with a text, the text is that of a model of this name."""
    file = Path(path)
    if text is not None:
        return file, dict(json.loads(text))
    if file.is_dir():
        if not (file / "config.json").is_file() and (file / "model_index.json").is_file():
            file = file / "model_index.json"
        else:
            file = file / "config.json"
    if not file.is_file():
        raise GaplessError(f"{file}: no such file; name a config.json of transformers or diffusers, or its folder")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise GaplessError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise GaplessError(f"{file} is not a configuration: write a JSON object, as transformers and diffusers save it")
    if file.name == "model_index.json" or (isinstance(found.get("_class_name"), str) and found["_class_name"].endswith("Pipeline")):
        parts = sorted(folder.name for folder in file.parent.iterdir() if (folder / "config.json").is_file())
        named = ", ".join(str(file.parent / part) for part in parts) or "none of its folders has a config.json"
        raise GaplessError(f"{file} is a pipeline of several models: name the one that is to run: {named}")
    return file, found


def prepared(path: str, settings: Settings, text: Optional[str] = None) -> Work:
    """The model of a configuration, on the host, with everything that its run needs."""
    # No configuration may fetch anything.
    os.environ["HF_HUB_OFFLINE"] = os.environ["TRANSFORMERS_OFFLINE"] = "1"
    file, found = read(path, text)
    diffusion = "_class_name" in found
    made, said = _diffusers(file, found, settings) if diffusion else _transformers(file, found, settings)
    told: list[str] = []
    if settings.checkpointing == "full":
        _checkpoint(made, diffusion)
        said.append("every block that the library can recompute is recomputed in the backward pass")
    given = latents.recipes(made, settings.sizes, settings.train) if diffusion else batches.recipes(made, settings.sizes, settings.train)
    loss = _run_alone if not settings.train else _noise_loss(told) if diffusion else _own_loss(told)
    return Work(made, settings, given, loss, said, told)


def refusal(model: Any, why: "list[str]") -> str:
    """Why no batch could be made."""
    name = type(model).__name__
    if not why:
        return f"no batch can be made for {name}: its forward pass takes inputs that a configuration does not describe; {_SCRIPT}"
    return f"{name} accepted none of {len(why)} batches; the first was refused {why[0]}. {_SCRIPT[0].upper()}{_SCRIPT[1:]}"


# ---- models ----


def _transformers(file: Path, found: "dict[str, Any]", settings: Settings) -> "tuple[Any, list[str]]":
    try:
        import transformers
        from transformers.models.auto import configuration_auto
    except ImportError as error:
        raise GaplessError(f"{file}: transformers makes this model, and cannot be imported ({error}): install it for this Python") from error
    version = transformers.__version__
    kind = found.get("model_type")
    if not isinstance(kind, str):
        raise GaplessError(f"{file} has no model_type: add it, or {_SCRIPT}")
    if kind not in configuration_auto.CONFIG_MAPPING:
        remote = "; its code comes with the checkpoint, and is not run here" if "auto_map" in found else ""
        raise GaplessError(f"{file}: transformers {version} does not know the model_type {kind!r}{remote}: install a release that does, or {_SCRIPT}")
    said = []
    if found.get("quantization_config"):
        said.append(f"the checkpoint is quantised: its weights are taken in {settings.precision}")
    plain = {key: value for key, value in found.items() if key not in ("quantization_config", "auto_map", "dtype", "torch_dtype")}
    with _refusing(file, f"transformers {version}"):
        config = configuration_auto.CONFIG_MAPPING[kind].from_dict(plain)
    if settings.attention is not None:
        config._attn_implementation = ATTENTION[settings.attention]
    for name, value in (("pad_token_id", 0), ("decoder_start_token_id", 0)):
        # Labels are shifted, and sequences padded, with these.
        if getattr(config, name, None) is None and (name == "pad_token_id" or getattr(config, "is_encoder_decoder", False)):
            setattr(config, name, value)
    chosen, why = _class(transformers, config, found)
    with _refusing(file, f"transformers {version}"):
        made = chosen._from_config(config, dtype=dtype_of(settings.precision))
    count = sum(parameter.numel() for parameter in made.parameters())
    said.insert(0, f"{chosen.__name__} of transformers {version}{why}: {count:,} parameters")
    return made, said


def _class(transformers: Any, config: Any, found: "dict[str, Any]") -> "tuple[Any, str]":
    """The class to make, and why it was chosen if the configuration does not name it."""
    named = found.get("architectures")
    names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    known = {name.casefold(): name for name in dir(transformers)}
    for name in names:
        # Checkpoints with code of their own write some names in other cases: MPTForCausalLM is MptForCausalLM.
        chosen = getattr(transformers, known.get(name.casefold(), name), None)
        if isinstance(chosen, type) and hasattr(chosen, "_from_config"):
            return chosen, ""
    if names and "auto_map" in found:
        # No other class is tried, because another class of the same type may be another model.
        told = f"{names[0]} is code that comes with the checkpoint, and is not run here"
        raise GaplessError(f"{told}: {_SCRIPT}; the script may pass trust_remote_code=True")
    from transformers.models.auto import modeling_auto

    mappings = [getattr(modeling_auto, f"MODEL_FOR_{purpose}_MAPPING", None) for purpose in _PURPOSES]
    for mapping in [*mappings, modeling_auto.MODEL_MAPPING]:
        if mapping is not None and type(config) in mapping:
            chosen = mapping[type(config)]
            chosen = chosen[0] if isinstance(chosen, (list, tuple)) else chosen
            why = f" (the configuration names {names[0]}, which is not there)" if names else " (the configuration names no class)"
            return chosen, why
    raise GaplessError(f"transformers has no class to run for model_type {config.model_type!r}: {_SCRIPT}")


def _diffusers(file: Path, found: "dict[str, Any]", settings: Settings) -> "tuple[Any, list[str]]":
    try:
        diffusers: Any = importlib.import_module("diffusers")
    except ImportError as error:
        raise GaplessError(f"{file}: diffusers makes this model, and cannot be imported ({error}): install it for this Python") from error
    name, version = found["_class_name"], diffusers.__version__
    chosen = getattr(diffusers, name, None) if isinstance(name, str) else None
    if not isinstance(chosen, type) or not hasattr(chosen, "from_config"):
        raise GaplessError(f"{file}: diffusers {version} has no class {name!r}: install a release that has it, or {_SCRIPT}")
    with _refusing(file, f"diffusers {version}"):
        made = chosen.from_config(found)
    if not hasattr(made, "parameters"):
        raise GaplessError(f"{file}: {name} has no parameters: name the configuration of a model, as unet/config.json")
    made = made.to(dtype=dtype_of(settings.precision))
    count = sum(parameter.numel() for parameter in made.parameters())
    return made, [f"{name} of diffusers {version}: {count:,} parameters"]


class _refusing:
    """Turns an error of a library about a configuration into a refusal."""

    def __init__(self, file: Path, library: str) -> None:
        self._file, self._library = file, library

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None and isinstance(error, Exception) and not isinstance(error, GaplessError):
            said = str(error).strip() or type(error).__name__
            what = f"{self._file}: {self._library} cannot make this model: {type(error).__name__}: {said[:600]}"
            raise GaplessError(f"{what}. Correct the configuration, or {_SCRIPT}") from error


def _checkpoint(model: Any, diffusion: bool) -> None:
    try:
        if diffusion:
            model.enable_gradient_checkpointing()
        else:
            model.gradient_checkpointing_enable()
    except (ValueError, AttributeError, NotImplementedError) as error:
        raise GaplessError(f"--checkpointing full: {type(model).__name__} cannot recompute its blocks ({error}): leave it out") from error


# ---- losses ----


def _run_alone(model: Any, batch: "dict[str, Any]") -> Any:
    return model(**batch)


def _own_loss(told: "list[str]") -> "Callable[[Any, Any], Any]":
    """The loss that the model computes itself; else the mean of its first output that has gradients."""

    def loss(model: Any, batch: "dict[str, Any]") -> Any:
        out = model(**batch)
        found = getattr(out, "loss", None)
        if found is not None:
            told.append("the loss is the model's own")
            return found if found.dim() == 0 else found.mean()
        told.append("the model computes no loss for this batch: the mean of its first output is taken, and a loss of yours may take more")
        return _first(out).float().mean()

    return loss


def _noise_loss(told: "list[str]") -> "Callable[[Any, Any], Any]":
    """The mean squared error against noise, or against a picture, as diffusion models and autoencoders are trained."""

    def loss(model: Any, batch: "dict[str, Any]") -> Any:
        import torch

        found = _first(model(**batch))
        told.append("the loss is the mean squared error against noise of the output's shape, in float32")
        return torch.nn.functional.mse_loss(found.float(), torch.randn_like(found).float())

    return loss


def _first(out: Any) -> Any:
    """The first output that has gradients."""
    import torch

    waiting = [out]
    while waiting:
        part = waiting.pop(0)
        if isinstance(part, torch.Tensor) and part.is_floating_point() and part.requires_grad:
            return part
        if isinstance(part, dict):
            waiting[:0] = list(part.values())
        elif isinstance(part, (tuple, list)):
            waiting[:0] = list(part)
    raise ValueError("no output of the model has gradients")
