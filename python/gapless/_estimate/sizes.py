"""The sizes of a batch: those that were asked for, or those that a configuration of transformers has."""

from dataclasses import dataclass
from typing import Any, Optional

from .._errors import GaplessError

# As `gapless fit`: so many tokens, or the model's positions if they are fewer; so many pixels a side.
_USUAL_LENGTH, _USUAL_SIDE = 2048, 224
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length", "n_ctx", "max_seq_length")
_VISION = ("vision_config", "vision", "vision_encoder_config", "visual_config", "encoder", "backbone_config", "image_encoder_config", "question_encoder")


@dataclass(frozen=True)
class Sizes:
    """The sizes that were asked for; a size that is None comes from the configuration."""

    batch: int = 1
    seq: Optional[int] = None
    image: Optional[int] = None
    seconds: float = 10.0

    def length(self, model: Any) -> int:
        """Tokens of a sequence."""
        most = own(text_config(model.config), _POSITIONS)
        learned = _learned_positions(model)
        if self.seq is not None:
            if learned is not None and self.seq > learned:
                raise GaplessError(f"--seq {self.seq} is more than the {learned} positions that the model has learned: use --seq {learned} or less")
            return self.seq
        return min(size for size in (_USUAL_LENGTH, most, learned) if isinstance(size, int) and size > 0)

    def target_length(self, model: Any) -> int:
        """Tokens that a decoder reads beside an encoder."""
        most = own(model.config, ("max_target_positions", "decoder_max_position_embeddings"))
        length = self.length(model)
        return min(length, most) if isinstance(most, int) and most > 0 else length

    def ordinary_tokens(self, model: Any) -> "tuple[int, int]":
        """The longest run of tokens without a special one, from and up to."""
        count = own(text_config(model.config), ("vocab_size",))
        if not isinstance(count, int) or count < 1:
            table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
            count = getattr(table, "num_embeddings", 256) or 256
        special = sorted({-1, count, *(token for token in _special(model.config) if 0 <= token < count)})
        gaps = [(above - below, below + 1, above) for below, above in zip(special, special[1:])]
        _, low, high = max(gaps)
        return low, max(high, low + 1)


def text_config(config: Any) -> Any:
    """The part of a configuration that describes the model of text."""
    try:
        return config.get_text_config()
    except (ValueError, AttributeError):
        for name in ("text_config", "decoder", "generator", "text_encoder"):
            if getattr(config, name, None) is not None:
                return getattr(config, name)
        return config


def vision_config(config: Any) -> Any:
    """The part that describes the model of pictures."""
    for part in _parts(config):
        for name in _VISION:
            found = getattr(part, name, None)
            if found is not None and not isinstance(found, (str, int, float)):
                return found
    return config


def own(config: Any, names: "tuple[str, ...]") -> Any:
    """The first of these that the configuration or one of its parts has, the outer one first."""
    for part in _parts(config):
        for name in names:
            found = part.get(name) if isinstance(part, dict) else getattr(part, name, None)
            if found is not None and found is not False:
                return found
    return None


def side_of(config: Any, sizes: Sizes) -> "tuple[int, int]":
    """Height and width of a picture."""
    if sizes.image is not None:
        return sizes.image, sizes.image
    found = own(vision_config(config), ("image_size", "img_size", "input_size")) or own(config, ("image_size",))
    if isinstance(found, (list, tuple)) and len(found) >= 2 and all(isinstance(side, int) for side in found):
        return found[-2], found[-1]
    if isinstance(found, dict) and {"height", "width"} <= set(found):
        return int(found["height"]), int(found["width"])
    if isinstance(found, (list, tuple)) and found and isinstance(found[0], int):
        found = found[0]
    side = found if isinstance(found, int) and found > 0 else _USUAL_SIDE
    return side, side


def usual_frames(config: Any) -> int:
    """Pictures of a video; 1 for a model of single pictures."""
    found = own(config, ("num_frames", "frames_per_clip", "num_video_frames"))
    return found if isinstance(found, int) and found > 0 else 1


def _parts(config: Any) -> "list[Any]":
    """The configuration and those inside it, the outer first."""
    found, at = [config], 0
    while at < len(found):
        inside = found[at] if isinstance(found[at], dict) else getattr(found[at], "__dict__", {})
        for name, part in inside.items():
            if not name.startswith("_") and hasattr(part, "to_dict") and hasattr(part, "model_type"):
                found.append(part)
        at += 1
    return found


def _special(config: Any) -> "set[int]":
    """Tokens that a configuration names."""
    found: set[int] = set()
    for part in _parts(config):
        for name, value in getattr(part, "__dict__", {}).items():
            if name.endswith(("_token_id", "_token_index", "_token_ids")):
                found |= {one for one in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(one, int)}
    return found


def _learned_positions(model: Any) -> Optional[int]:
    """The smallest table of positions of text that the model has."""
    import torch

    counts = []
    for path, module in model.named_modules():
        last = path.rpartition(".")[2]
        picture = any(word in path for word in ("vision", "visual", "image", "patch", "pixel", "video", "query", "audio"))
        place = last in ("wpe", "embed_positions", "position_embedding", "position_embeddings", "pos_embedding", "positions_embed")
        if place and not picture and isinstance(module, torch.nn.Embedding):
            padding = module.padding_idx + 1 if module.padding_idx is not None else 0
            counts.append(module.num_embeddings - max(padding, getattr(module, "offset", 0)))
    return min(counts, default=None)
