"""How far off an estimate may be, from the evidence behind it.

The requests of torch's own host code are exact. The place of a block depends on the order of frees, some of which torch
leaves to chance (autocast clears a hash table), and a block may be up to 1 MiB larger than the request. Workspaces are
not exact: each kind of evidence has a share of the peak by which it was off at the 95th percentile of the measurements
on an H200. The bars add up, and none is smaller than the first.
"""

from typing import Any

from .cards import Card

# Shares of the peak: allocated, reserved. Measured on the 36 tuned cells of torch-bench/estimate, on the three scripts
# of torch-bench/live/estimated and on 183 cells of torch-bench/estimate/zoo.
_EXACT = (0.007, 0.06)
_PLAN = (0.015, 0.14)
_RULE = (0.04, 0.04)
_ASSUMED = (0.05, 0.06)
_CHOICE = (0.12, 0.30)
# Masks whose size was counted from one example of the data: another batch has other sizes, and the cache keeps both.
_SAMPLED = (0.01, 0.60)
_BRANCH = (0.02, 0.03)
# An optimizer that decides by its loss how often it evaluates the model.
_SEARCH = (0.25, 0.25)
# Steps whose peaks differ, of a program that was stopped: later ones may be larger, the more so the fewer were seen.
_VARIES_LEAST, _VARIES_STEPS = 0.10, 18
# Masks that could choose less than this share of the peak do not matter.
_FEW = 0.02
_UNMEASURED_CARD = (0.03, 0.10)


def at_least(found: "dict[str, Any]") -> bool:
    """True if more may come than was seen: the program was stopped before its end, the rounds of a loop follow from an
    unknown number, or masks of unknown numbers chose nothing, and what they would have chosen may grow from step to
    step."""
    return bool(found.get("stopped") or found.get("open_loops")) or _by_masks(found) > _FEW * found["peak_allocated"]


def _by_masks(found: "dict[str, Any]") -> int:
    """Bytes that masks of unknown numbers could have chosen."""
    return sum(choice["bytes"] for choice in found["choices"] if choice["function"].startswith("the size of"))


def _grows(found: "dict[str, Any]") -> bool:
    """True if the steps themselves may need more: the program was stopped while they differed."""
    stopped = found.get("stopped")
    return not found.get("settled") and (stopped == "time" or bool(stopped and found["varies"]))


def bars(found: "dict[str, Any]", card: Card) -> "dict[str, float]":
    """The error of each figure as a share of it."""
    notes = found["notes"]
    peak = max(found["peak_allocated"], 1)

    def largest(evidence: str) -> float:
        return float(max((note["largest"] for note in notes if note["evidence"] == evidence), default=0) / peak)

    terms = [_EXACT]
    if any(note["evidence"] == "plan" for note in notes):
        # The error of a workspace is at most its own size, so its share of the peak is a bound.
        terms.append((min(_PLAN[0], largest("plan")), _PLAN[1]))
    if any(note["evidence"] == "rule" for note in notes):
        terms.append((min(_RULE[0], largest("rule")), _RULE[1]))
    if any(note["evidence"] == "assumed" for note in notes):
        terms.append(_ASSUMED)
    if found["choices"]:
        terms.append(_CHOICE)
        # Masks of unknown numbers chose nothing here, and may choose everything on a card.
        most = _by_masks(found) / peak
        terms.append((most, most))
    if found.get("sampled"):
        terms.append(_SAMPLED)
    if found.get("searches"):
        terms.append(_SEARCH)
    if any(read["function"] in ("__bool__", "a comparison", "equal", "allclose") for read in found["reads"]):
        terms.append(_BRANCH)
    if _grows(found):
        more = max(_VARIES_LEAST, found["spread"]) * (1 + _VARIES_STEPS / max(found["steps"], 1))
        terms.append((more, more))
    if not card.measured:
        terms.append(_UNMEASURED_CARD)
    return {"peak_allocated": sum(term[0] for term in terms), "peak_reserved": sum(term[1] for term in terms)}
