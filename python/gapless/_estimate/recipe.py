"""A batch as a recipe: names, shapes and fills. A recipe can be told in words, and made on any device."""

from dataclasses import dataclass
from typing import Any, Optional

Recipe = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A tensor of a batch.

    fill: `numbers` are whole numbers from `low` up to `high`, `floats` are normal, in the dtype of the run, `value` is
    `low` everywhere, `mask` is all true.
    marks: (value, count): the first `count` of each row have that value, as the places of a picture among tokens.
    """

    shape: "tuple[int, ...]"
    fill: str = "floats"
    low: int = 0
    high: int = 0
    marks: "Optional[tuple[int, int]]" = None
    # The name of a dtype, if it is not the run's own.
    dtype: Optional[str] = None


@dataclass(frozen=True)
class Same:
    """The tensor that another name of the recipe has."""

    name: str


@dataclass(frozen=True)
class Rows:
    """Whole numbers as they stand, one row for each sample."""

    row: "tuple[int, ...]"
    count: int


def make(recipe: Recipe, device: Any, dtype: Any) -> "dict[str, Any]":
    """The batch of a recipe. Entries that are no tensors stay what they are."""
    made = {name: _made(entry, device, dtype) for name, entry in recipe.items()}
    return {name: made[entry.name] if isinstance(entry, Same) else made[name] for name, entry in recipe.items()}


def _made(entry: Any, device: Any, dtype: Any) -> Any:
    import torch

    if isinstance(entry, dict):
        return {name: _made(part, device, dtype) for name, part in entry.items()}
    if isinstance(entry, list):
        return [_made(part, device, dtype) for part in entry]
    if isinstance(entry, Rows):
        return torch.tensor([list(entry.row)] * entry.count, device=device)
    if not isinstance(entry, Field):
        return entry
    kind = getattr(torch, entry.dtype) if entry.dtype else None
    if entry.fill == "floats":
        return torch.randn(entry.shape, device=device, dtype=kind or dtype)
    if entry.fill == "mask":
        return torch.ones(entry.shape, device=device, dtype=kind or torch.bool)
    if entry.fill == "value":
        out = torch.full(entry.shape, entry.low, device=device, dtype=kind or torch.int64)
    else:
        out = torch.randint(entry.low, max(entry.high, entry.low + 1), entry.shape, device=device, dtype=kind or torch.int64)
    if entry.marks is not None:
        out[..., : entry.marks[1]] = entry.marks[0]
    return out


def words(recipe: Recipe) -> str:
    """The recipe in words: names and shapes."""
    return ", ".join(part for name, entry in recipe.items() for part in _told(name, entry))


def _told(name: str, entry: Any) -> "list[str]":
    if isinstance(entry, Field):
        shape = " x ".join(str(side) for side in entry.shape) or "one number"
        places = f", {entry.marks[1]} of each row for the picture or sound" if entry.marks and entry.fill == "numbers" else ""
        return [f"{name} {shape}{places}"]
    if isinstance(entry, Same):
        return [f"{name} = {entry.name}"]
    if isinstance(entry, Rows):
        return [f"{name} {list(entry.row)} for each"]
    if isinstance(entry, dict):
        return [told for key, part in entry.items() for told in _told(f"{name}.{key}", part)]
    return [f"{name}={entry}"]
