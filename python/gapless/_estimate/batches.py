"""Batches for models of transformers, by the parameters of their forward pass and their configuration.

A model may take its inputs in several shapes, and only the model knows which. So there is a list of recipes, the
likeliest first, and the caller takes the first that the model accepts.
"""

import gc
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Optional

from .._errors import GaplessError
from .labels import labelled
from .recipe import Field, Recipe, Rows, make
from .sizes import Sizes, own, side_of, text_config, usual_frames, vision_config

# Names under which configurations keep the token that stands for a picture or a sound.
_PICTURE_TOKENS = ("image_token_id", "image_token_index", "image_patch_id", "media_token_id")
_SOUND_TOKENS = ("audio_token_id", "audio_token_index", "speech_token_id", "speech_token_index")
# So many tokens of text follow a picture or a sound, if no length was asked for.
_AFTER_PICTURE = 64


def recipes(model: Any, sizes: Sizes, train: bool) -> "Iterator[Recipe]":
    """Recipes that may be the model's inputs, the likeliest first: with labels if it computes a loss of its own."""
    parameters = inspect.signature(model.forward).parameters
    if train and "use_cache" not in parameters and hasattr(text_config(model.config), "use_cache"):
        # A cache of keys and values has no use in training; trainers turn it off.
        text_config(model.config).use_cache = False
    for inputs in _inputs(model, parameters, sizes):
        if train:
            for labels in labelled(model, parameters, inputs, sizes):
                yield {**inputs, **labels, **({"use_cache": False} if "use_cache" in parameters else {})}
        else:
            yield {**inputs, **({"use_cache": True} if "use_cache" in parameters else {})}


def _inputs(model: Any, parameters: Any, sizes: Sizes) -> "Iterator[Recipe]":
    main = getattr(model, "main_input_name", "input_ids")
    main = main[0] if isinstance(main, (list, tuple)) else main
    if "input_ids" in parameters:
        yield from _with_text(model, parameters, sizes)
    if main in ("pixel_values", "pixel_values_videos") or "pixel_values" in parameters or "pixel_values_videos" in parameters:
        yield from _pictures_alone(model, parameters, sizes)
    if "flattened_patches" in parameters:
        yield from _flattened(model, parameters, sizes)
    if "input_features" in parameters:
        for shape in _feature_shapes(model, sizes):
            yield {"input_features": Field(shape), **_decoder(model, parameters, sizes)}
    if "input_values" in parameters:
        for shape in _wave_shapes(model, sizes):
            yield {"input_values": Field(shape), **_decoder(model, parameters, sizes)}
    if "past_values" in parameters:
        yield from _series(model, parameters, sizes)
    if "inputs_embeds" in parameters and "input_ids" not in parameters:
        hidden = own(text_config(model.config), ("hidden_size", "d_model", "n_embd")) or 768
        yield {"inputs_embeds": Field((sizes.batch, sizes.length(model), hidden))}


# ---- text ----


def _ids(model: Any, sizes: Sizes, length: int, marks: "Optional[tuple[int, int]]" = None) -> Field:
    low, high = sizes.ordinary_tokens(model)
    return Field((sizes.batch, length), "numbers", low, high, marks)


def _text(model: Any, parameters: Any, sizes: Sizes) -> Recipe:
    length = sizes.length(model)
    found: Recipe = {"input_ids": _ids(model, sizes, length)}
    if type(model).__name__.endswith("ForMultipleChoice"):
        found["input_ids"] = replace(found["input_ids"], shape=(sizes.batch, 2, length))
    if "bbox" in parameters:
        found["bbox"] = Field((sizes.batch, length, own(model.config, ("dim_bbox",)) or 4), "value")
    if "visual_feats" in parameters:
        found["visual_feats"] = Field((sizes.batch, 36, own(model.config, ("visual_feat_dim",)) or 2048))
        found["visual_pos"] = Field((sizes.batch, 36, 4))
    return {**found, **_decoder(model, parameters, sizes)}


def _decoder(model: Any, parameters: Any, sizes: Sizes) -> Recipe:
    """The inputs of the decoder of an encoder-decoder model."""
    if "decoder_input_ids" not in parameters or not _has_decoder(model):
        return {}
    return {"decoder_input_ids": _ids(model, sizes, sizes.target_length(model))}


def _has_decoder(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False)) or own(model.config, ("decoder_layers", "decoder_config")) is not None


def _with_text(model: Any, parameters: Any, sizes: Sizes) -> "Iterator[Recipe]":
    """Text, with a picture or a sound for each sample if the model takes them."""
    for inputs, features, names in (
        (_pictures, ("get_image_features",), _PICTURE_TOKENS),
        (_sounds, ("get_audio_features", "get_speech_features"), _SOUND_TOKENS),
    ):
        token = own(model.config, names)
        for given in inputs(model, parameters, sizes):
            if not isinstance(token, int):
                yield {**_text(model, parameters, sizes), **given}
                continue
            count = _places(model, features, inputs, given, sizes)
            if count:
                yield _around(model, parameters, sizes, given, token, count)
    yield _text(model, parameters, sizes)


def _around(model: Any, parameters: Any, sizes: Sizes, given: Recipe, token: int, count: int) -> Recipe:
    """Tokens of which the first stand for the picture or the sound."""
    length = sizes.length(model) if sizes.seq is not None else max(sizes.length(model), count + _AFTER_PICTURE)
    if length <= count:
        raise GaplessError(f"--seq {length} has no room for text: a picture or sound of the given size takes {count} tokens; use --seq {count + 1} or more")
    found = {**_text(model, parameters, sizes), **given, "input_ids": _ids(model, sizes, length, (token, count))}
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in parameters:
            found[name] = Field((sizes.batch, length), "value", 0, marks=(1, count))
    return found


def _places(model: Any, functions: "tuple[str, ...]", inputs: Any, given: Recipe, sizes: Sizes) -> int:
    """How many tokens the features of one sample take, as the model counts them; 0 if it does not take these inputs."""
    import torch

    function = next((getattr(model, name) for name in functions if hasattr(model, name)), None)
    if function is None:
        return 0
    one = next((found for found in inputs(model, inspect.signature(model.forward).parameters, replace(sizes, batch=1)) if _alike(found, given)), None)
    if one is None:
        return 0
    taken = inspect.signature(function).parameters
    try:
        count = _counted(function, {name: entry for name, entry in make(one, model.device, model.dtype).items() if name in taken})
    except Exception:
        count = 0
    gc.collect()
    torch.cuda.empty_cache()
    return count


def _counted(function: Any, words: "dict[str, Any]") -> int:
    """Rows of the features that the function returns."""
    import torch

    with torch.no_grad():
        out = function(**words)
    pooled = getattr(out, "pooler_output", None)
    return sum(int(leaf.numel() // leaf.shape[-1]) for leaf in _leaves(out if pooled is None else pooled))


def _alike(one: Recipe, other: Recipe) -> bool:
    """True if two recipes differ in the number of samples alone."""

    def shapes(found: Recipe) -> "list[Any]":
        fields = [(name, entry.shape) for name, entry in found.items() if isinstance(entry, Field)]
        return [sorted(found), *((name, len(shape), shape[1:2] if len(shape) > 4 else ()) for name, shape in fields)]

    return shapes(one) == shapes(other)


def _leaves(found: Any) -> "list[Any]":
    import torch

    if isinstance(found, torch.Tensor):
        return [found]
    if isinstance(found, (list, tuple)):
        # Beside its features a model may return those of inner layers, which take no tokens of their own.
        parts = found[:1] if isinstance(found, tuple) and len(found) > 1 and isinstance(found[0], (list, tuple, torch.Tensor)) and not _rows(found) else found
        return [leaf for part in parts for leaf in _leaves(part)]
    return []


def _rows(found: Any) -> bool:
    """True if all parts are features of pictures, two sides each."""
    return all(getattr(part, "dim", lambda: 0)() == 2 for part in found)


# ---- pictures ----


def _pictures(model: Any, parameters: Any, sizes: Sizes) -> "Iterator[Recipe]":
    """One picture for each sample, in the shapes that models take them."""
    if "pixel_values" not in parameters:
        return
    vision = vision_config(model.config)
    channels = own(vision, ("num_channels", "in_channels", "in_chans", "channels")) or 3
    height, width = side_of(model.config, sizes)
    if "image_grid_thw" in parameters or "grid_thw" in parameters or "image_grid_hws" in parameters:
        yield _patches(vision, parameters, channels, height, width, sizes)
        return
    more: Recipe = {}
    if "image_sizes" in parameters:
        more["image_sizes"] = Rows((height, width), sizes.batch)
    if "aspect_ratio_ids" in parameters:
        tiles = own(vision, ("max_num_tiles",)) or 4
        more["aspect_ratio_ids"] = Field((sizes.batch, 1), "value", 1)
        more["aspect_ratio_mask"] = Field((sizes.batch, 1, tiles), "mask", dtype="int64")
        more["cross_attention_mask"] = Field((sizes.batch, sizes.length(model), 1, tiles), "mask", dtype="int64")
        yield {"pixel_values": Field((sizes.batch, 1, tiles, channels, height, width)), **more}
    # Models that cut a picture into parts take as many as its size asks for: 1 to 7 at the usual sizes.
    shapes = [(sizes.batch, channels, height, width), *((sizes.batch, parts, channels, height, width) for parts in range(1, 8))]
    yield {"pixel_values": Field(shapes[0])}
    for shape in shapes if more else shapes[1:]:
        yield {"pixel_values": Field(shape), **more}


def _patches(vision: Any, parameters: Any, channels: int, height: int, width: int, sizes: Sizes) -> Recipe:
    """Pictures of any size, cut into patches that lie one after the other."""
    patch = own(vision, ("patch_size", "spatial_patch_size")) or 14
    merge = own(vision, ("spatial_merge_size", "merge_size", "downsample_ratio")) or 2
    merge = merge if isinstance(merge, int) else 2
    rows, columns = (max(1, side // (patch * merge)) * merge for side in (height, width))
    depth = own(vision, ("temporal_patch_size",)) or 1
    name = next(name for name in ("image_grid_thw", "grid_thw", "image_grid_hws") if name in parameters)
    grid = Rows((1, rows, columns) if name.endswith("thw") else (rows, columns), sizes.batch)
    return {"pixel_values": Field((sizes.batch * rows * columns, channels * depth * patch * patch)), name: grid}


def _pictures_alone(model: Any, parameters: Any, sizes: Sizes) -> "Iterator[Recipe]":
    """Models of pictures and videos."""
    vision = vision_config(model.config)
    channels = own(vision, ("num_channels", "in_channels", "in_chans", "channels")) or 3
    height, width = side_of(model.config, sizes)
    frames = usual_frames(model.config)
    decoder = _decoder(model, parameters, sizes)
    name = "pixel_values" if "pixel_values" in parameters else "pixel_values_videos"
    more: Recipe = {}
    if "input_ids" not in parameters and "labels" in parameters and "prompt_pixel_values" in parameters:
        more = {"prompt_pixel_values": Field((sizes.batch, channels, height, width)), "prompt_masks": Field((sizes.batch, channels, height, width))}
    if "task_inputs" in parameters:
        more["task_inputs"] = Field((sizes.batch, own(model.config, ("task_seq_len",)) or 77), "value")
    if "original_sizes" in parameters and "pixel_values" in parameters:
        more.setdefault("original_sizes", None)
    shapes = [(sizes.batch, channels, height, width), (sizes.batch, frames, channels, height, width), (sizes.batch, channels, frames, height, width)]
    if frames > 1 or name == "pixel_values_videos":
        shapes = [shapes[1], shapes[0], shapes[2]]
    for shape in shapes:
        yield {name: Field(shape), **more, **decoder}
    if "grid_thw" in parameters or "image_grid_thw" in parameters:
        yield _patches(vision, parameters, channels, height, width, sizes)


def _flattened(model: Any, parameters: Any, sizes: Sizes) -> "Iterator[Recipe]":
    vision = vision_config(model.config)
    patch = own(vision, ("patch_size",)) or 16
    count = sizes.seq or own(vision, ("seq_len",)) or 2048
    width = own(vision, ("patch_embed_hidden_size",)) or 3 * patch * patch
    patches = Field((sizes.batch, count, 2 + width), "value", dtype="float32")
    yield {"flattened_patches": patches, **_decoder(model, parameters, sizes)}
    yield {"flattened_patches": replace(patches, shape=(sizes.batch, count, 2 + 3 * patch * patch)), **_decoder(model, parameters, sizes)}


# ---- sounds ----


def _sounds(model: Any, parameters: Any, sizes: Sizes) -> "Iterator[Recipe]":
    """One sound for each sample, for models that also read text."""
    if "input_features" in parameters:
        for shape in _feature_shapes(model, sizes):
            more: Recipe = {}
            frames = max(shape[1:])
            for name in ("feature_attention_mask", "input_features_mask", "audio_attention_mask"):
                if name in parameters:
                    more[name] = Field((sizes.batch, frames), "mask", dtype="int64")
            yield {"input_features": Field(shape), **more}
    elif "input_values" in parameters:
        for shape in _wave_shapes(model, sizes):
            yield {"input_values": Field(shape)}


def _feature_shapes(model: Any, sizes: Sizes) -> "Iterator[tuple[int, ...]]":
    """Spectra: bands by frames or frames by bands, as long as the model wants or 100 frames a second."""
    bands = own(model.config, ("num_mel_bins", "n_mels", "feature_size", "mel_bins", "num_mel_bands", "input_feat_per_channel")) or 80
    bands *= own(model.config, ("input_channels",)) or 1
    fixed = own(model.config, ("max_source_positions",))
    frames = max(8, round(100 * sizes.seconds) // 8 * 8)
    whole = 2 * fixed if isinstance(fixed, int) and fixed else frames
    wide = own(model.config, ("feature_projection_input_dim", "input_dim")) or 2 * bands
    for shape in ((bands, whole), (frames, bands), (frames, wide), (bands, frames), (1, frames, bands), (1, 1001, bands), (1, 1024, bands)):
        yield (sizes.batch, *shape)


def _wave_shapes(model: Any, sizes: Sizes) -> "Iterator[tuple[int, ...]]":
    """Waves, at the model's rate or 16,000 samples a second; models of spectra have a length and bands of their own."""
    config = model.config
    rate = own(config, ("sampling_rate", "sample_rate")) or 16_000
    samples = round(rate * sizes.seconds)
    bands = own(config, ("num_mel_bins",))
    if isinstance(bands, int) and own(config, ("max_length",)) and own(config, ("patch_size", "frequency_stride")):
        yield (sizes.batch, own(config, ("max_length",)), bands)
    hop = own(config, ("hop_length",))
    whole = -(-samples // hop) * hop if isinstance(hop, int) and hop > 0 else samples
    yield (sizes.batch, samples)
    yield (sizes.batch, own(config, ("audio_channels",)) or 1, whole)
    yield (sizes.batch, round(100 * sizes.seconds), bands if isinstance(bands, int) else 80)


# ---- series ----


def _series(model: Any, parameters: Any, sizes: Sizes) -> "Iterator[Recipe]":
    """Series of measurements, as long as the configuration's context."""
    config, batch = model.config, sizes.batch
    context, ahead = own(config, ("context_length",)) or 512, own(config, ("prediction_length",)) or 24
    channels = own(config, ("num_input_channels", "input_size")) or 1
    lags = own(config, ("lags_sequence",))
    before = context + (max(lags) if isinstance(lags, (list, tuple)) and lags else 0)
    features = own(config, ("num_time_features",)) or 0
    given: Recipe = {"past_values": Field((batch, before) if channels == 1 else (batch, before, channels))}
    if "past_time_features" in parameters:
        given["past_time_features"] = Field((batch, before, features))
        given["past_observed_mask"] = Field(given["past_values"].shape, "mask", dtype="float32")
        given["future_values"] = Field((batch, ahead) if channels == 1 else (batch, ahead, channels))
        given["future_time_features"] = Field((batch, ahead, features))
        for name, count in (("static_categorical_features", "num_static_categorical_features"), ("static_real_features", "num_static_real_features")):
            if own(config, (count,)):
                given[name] = Field((batch, own(config, (count,))), *(("value",) if "categorical" in name else ()))
        yield given
    yield {"past_values": Field((batch, context, channels))}
    yield {"past_values": Field((batch, context))}
