"""Weights of models: loaded into their final place and saved from it, in bounded host memory.

    import gapless.weights
    tensors = gapless.weights.load("model.safetensors", device="cuda")
    gapless.weights.save(tensors, "packed.safetensors")

Files are .safetensors, packed by `gapless weights pack` or not, or folders with shards. See docs/weights-load.md.
"""

from ._background import Saving
from ._errors import DamagedError, FormatError, NamesError, ReadError, WeightsError
from ._load import Loaded, load, load_into
from ._native import release
from ._pretrained import from_pretrained
from ._save import save

__all__ = [
    "DamagedError",
    "FormatError",
    "Loaded",
    "NamesError",
    "ReadError",
    "Saving",
    "WeightsError",
    "from_pretrained",
    "load",
    "load_into",
    "release",
    "save",
]
