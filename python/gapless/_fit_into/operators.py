"""Which operators may run a second time."""

import enum
from typing import Any

import torch

# The result may differ from run to run on a device, or a hidden argument is changed.
_NEVER = (
    "batch_norm",
    "instance_norm",
    "embedding_renorm",
    "scatter_add",
    "index_add",
    "index_put",
    "scatter_reduce",
    "put",
    "bincount",
    "histc",
    "rnn",
    "lstm",
    "gru",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "_local_scalar_dense",
    "nonzero",
    "_foreach",
    "_fused",
    "resize",
    "set_",
)
# Use the default generator of their device, and nothing else that changes.
_RANDOM = ("native_dropout", "bernoulli", "rand_like", "randn_like", "_scaled_dot_product", "_fused_dropout", "rrelu_with_noise_functional")


class Nature(enum.Enum):
    PURE = 1
    RANDOM = 2
    OPAQUE = 3


_known: dict[Any, Nature] = {}


def nature(func: Any) -> Nature:
    found = _known.get(func)
    if found is None:
        found = _known[func] = _nature(func)
    return found


def _nature(func: Any) -> Nature:
    schema = func._schema
    if func.namespace != "aten" or schema.is_mutable:
        return Nature.OPAQUE
    name = schema.name.split("::")[1]
    if "backward" in name or any(name == never or never in name and len(never) > 4 for never in _NEVER):
        return Nature.OPAQUE
    if torch.Tag.nondeterministic_seeded in func.tags:
        return Nature.RANDOM if name.startswith(_RANDOM) else Nature.OPAQUE
    return Nature.PURE
