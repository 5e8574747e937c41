"""Batches for models of diffusers: latents with their conditions, or pictures for autoencoders.

Latents have an eighth of the picture's side, and texts the length that the usual encoder gives, unless the
configuration says otherwise.
"""

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .recipe import Field, Recipe
from .sizes import Sizes, own

_SMALLER = 8
_USUAL_SIDE = 512
# Tokens of a prompt, by the encoder that the conditions come from.
_CLIP_TOKENS, _LONG_TOKENS = 77, 512
# Frames of latents of a video.
_FRAMES = 5
_TEXT_WIDTHS = (
    "joint_attention_dim",
    "text_embed_dim",
    "text_dim",
    "caption_channels",
    "context_in_dim",
    "cap_feat_dim",
    "cross_attention_dim",
    "encoder_hid_dim",
)


def recipes(model: Any, sizes: Sizes, train: bool) -> "Iterator[Recipe]":
    """Recipes that may be the model's inputs, the likeliest first."""
    parameters = inspect.signature(model.forward).parameters
    needed = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    for main in _mains(model, parameters, sizes):
        name, field = next(iter(main.items()))
        for text in _texts(model, parameters, needed, field):
            given = {**main, **_times(parameters, field), **text, **_conditions(model, parameters, needed, field, text, sizes)}
            yield given


def _mains(model: Any, parameters: Any, sizes: Sizes) -> "Iterator[Recipe]":
    config = dict(model.config)
    batch, name = sizes.batch, type(model).__name__
    channels = own(config, ("in_channels", "latent_channels")) or 4
    whole = sizes.image or _whole(config, name)
    if "Autoencoder" in name or name == "VQModel" or name.endswith("VAE"):
        side = sizes.image or config.get("sample_size") or _USUAL_SIDE
        side = side if isinstance(side, int) else _USUAL_SIDE
        pictures = own(config, ("in_channels",)) or 3
        pictures = pictures if isinstance(pictures, int) else 3
        yield {"sample": Field((batch, pictures, side, side))}
        yield {"sample": Field((batch, pictures, 4 * (_FRAMES - 1) + 1, side, side))}
        yield {"sample": Field((batch, own(config, ("audio_channels",)) or 2, 1 << 16))}
        return
    key = next((key for key in ("sample", "hidden_states", "x") if key in parameters), None)
    if key is None:
        return
    side = max(1, whole // _SMALLER)
    flat, deep = Field((batch, channels, side, side)), Field((batch, channels, _FRAMES, side, side))
    packed = Field((batch, max(1, side // 2) ** 2, channels))
    order = [flat, packed, deep]
    if any(word in name for word in ("3D", "Video", "Motion")):
        order = [deep, flat, replace(deep, shape=(batch, _FRAMES, channels, side, side))]
    if "img_ids" in parameters or "img_shapes" in parameters:
        order = [packed, flat]
    for field in order:
        yield {key: field}


def _whole(config: "dict[str, Any]", name: str) -> int:
    """Pixels a side: the configuration's latents, eight times, or the usual size."""
    sample = config.get("sample_size")
    if isinstance(sample, (list, tuple)) and sample:
        sample = sample[-1]
    return sample * _SMALLER if isinstance(sample, int) and sample > 0 else _USUAL_SIDE


def _times(parameters: Any, field: Field) -> Recipe:
    """The step of the noise, for each sample."""
    found: Recipe = {}
    for name in ("timestep", "timesteps", "t"):
        if name in parameters:
            found[name] = Field((field.shape[0],), "value", 500)
    return found


def _texts(model: Any, parameters: Any, needed: "set[str]", field: Field) -> "Iterator[Recipe]":
    config = dict(model.config)
    if "encoder_hidden_states" not in parameters:
        yield {}
        return
    width = own(config, _TEXT_WIDTHS)
    width = width[0] if isinstance(width, (list, tuple)) and width else width
    if not isinstance(width, int):
        yield {}
        return
    name = type(model).__name__
    tokens = _CLIP_TOKENS if name.startswith(("UNet", "ControlNet")) else config.get("max_text_seq_length") or _LONG_TOKENS
    text = {"encoder_hidden_states": Field((field.shape[0], tokens, width))}
    if name.startswith("SD3"):
        # 77 of CLIP's and 256 of T5's tokens.
        text = {"encoder_hidden_states": Field((field.shape[0], _CLIP_TOKENS + 256, width))}
    for mask in ("encoder_attention_mask", "encoder_hidden_states_mask"):
        if mask in needed:
            text[mask] = Field(text["encoder_hidden_states"].shape[:2], "mask")
    yield text
    if not needed & {"encoder_hidden_states"}:
        yield {}


def _conditions(model: Any, parameters: Any, needed: "set[str]", field: Field, text: Recipe, sizes: Sizes) -> Recipe:
    config, batch = dict(model.config), field.shape[0]
    found: Recipe = {}
    if "pooled_projections" in parameters and own(config, ("pooled_projection_dim",)):
        found["pooled_projections"] = Field((batch, own(config, ("pooled_projection_dim",))))
    if "img_ids" in parameters:
        axes = len(config.get("axes_dims_rope") or (0, 0, 0))
        count = text["encoder_hidden_states"].shape[1] if text else 0
        found["img_ids"] = Field((field.shape[1], axes), "value", dtype="float32")
        found["txt_ids"] = Field((count, axes), "value", dtype="float32")
    if "img_shapes" in parameters:
        side = round(field.shape[1] ** 0.5)
        found["img_shapes"] = [[(1, side, side)]] * batch
    if "guidance" in parameters and config.get("guidance_embeds"):
        found["guidance"] = Field((batch,))
    if "class_labels" in parameters and _wants_classes(config, type(model).__name__):
        found["class_labels"] = Field((batch,), "value", 1)
    if config.get("addition_embed_type") == "text_time" and "added_cond_kwargs" in parameters:
        pooled = config["projection_class_embeddings_input_dim"] - 6 * config["addition_time_embed_dim"]
        found["added_cond_kwargs"] = {"text_embeds": Field((batch, pooled)), "time_ids": Field((batch, 6))}
    elif "added_cond_kwargs" in parameters and type(model).__name__.startswith("PixArt"):
        found["added_cond_kwargs"] = {"resolution": None, "aspect_ratio": None}
    if "controlnet_cond" in needed:
        side = _SMALLER * field.shape[-1]
        found["controlnet_cond"] = Field((batch, 3, side, side) if len(field.shape) == 4 and "sample" in parameters else field.shape)
    if "added_time_ids" in needed:
        found["added_time_ids"] = Field((batch, 3))
    for name in ("original_size", "target_size", "crop_coords"):
        if name in needed:
            found[name] = Field((batch, 2))
    return found


def _wants_classes(config: "dict[str, Any]", name: str) -> bool:
    return bool(config.get("num_class_embeds")) or name.startswith("DiT")
