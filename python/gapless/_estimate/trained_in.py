"""`gapless estimate --train-in 20GiB`: the program trains under gapless.fit_into on the card that is not there.

Memory is what it is in every estimate. Times are modelled: each operator at a share of the card's peaks.
"""

from typing import Any


class Trained:
    """The plans of the models that the program trains."""

    def __init__(self, torch: Any, budget: int) -> None:
        from .._fit_into import auto

        self.budget = budget
        self.plans: list[dict[str, Any]] = []
        self._watch = auto.install(torch, budget, wait=True, tell=self._hear)

    def _hear(self, name: str, answer: Any) -> None:
        self.plans.append(
            {
                "model": name,
                "fits": answer["fits"],
                "peak": answer["peak"],
                "least": answer["least"],
                "seconds": answer["time_us"] / 1e6,
                "kept": {"peak": answer["kept"]["peak"], "seconds": answer["kept"]["time_us"] / 1e6},
            }
        )

    def is_planned(self) -> bool:
        """False while steps run without a plan: they tell nothing of those that follow."""
        recorded = [kind for one in self._watch.fitted() for kind in one.kinds.values() if kind.seen > 2]
        return bool(recorded) and all(kind.answers or kind.problem for kind in recorded)

    @property
    def json(self) -> "dict[str, Any]":
        return {"trained_in": {"budget": self.budget, "plans": self.plans}}


def fits(found: "dict[str, Any]") -> bool:
    """True if no budget was asked for, or if every plan keeps to it."""
    trained = found.get("trained_in")
    return trained is None or (bool(trained["plans"]) and all(plan["fits"] for plan in trained["plans"]))


def told(found: "dict[str, Any]") -> "list[str]":
    """A line for each model, and what the times are."""
    from .._stats import size_text

    trained = found.get("trained_in")
    if trained is None:
        return []
    budget = size_text(trained["budget"])
    if not trained["plans"]:
        return [f"within {budget}: no step was planned. The program has to call a model with gradients, and four steps to train it"]
    lines = [_plan(budget, plan) for plan in trained["plans"]]
    return [*lines, "times are modelled: an operator runs at 55 % of the card's peak, or 70 % of its memory's speed"]


def _plan(budget: str, plan: "dict[str, Any]") -> str:
    from .._stats import size_text

    kept = plan["kept"]
    name, all_kept = plan["model"], f"{size_text(kept['peak'])} and {_time(kept['seconds'])} with everything kept"
    if plan["peak"] >= kept["peak"] and plan["fits"]:
        return f"within {budget}: {name} trains as it is, with {all_kept}"
    more = 100 * (plan["seconds"] / kept["seconds"] - 1) if kept["seconds"] else 0.0
    if plan["fits"]:
        return f"within {budget}: {name} trains in {size_text(plan['peak'])}, {_time(plan['seconds'])} a step; {all_kept}, so {more:.1f} % more time"
    return f"within {budget}: {name} does not train by recomputing alone. The least is {size_text(plan['least'])}; {all_kept}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
