"""The executor's tables: for each planned call, by its key, which arguments it must have, which of them it keeps
as sources, and which of its values it can make again.
"""

from typing import Any

from .leaves import agrees, refs, surroundings
from .operators import Nature
from .record import Call
from .steps import Step


class OpPlan:
    """One operator that may run again."""

    __slots__ = ("args", "func", "is_random", "kwargs", "outs", "reads")

    def __init__(self, op: Any) -> None:
        self.func, self.args, self.kwargs = op.func, op.args, op.kwargs
        self.outs: list[tuple[int, int]] = op.outs
        self.is_random = op.nature is Nature.RANDOM
        self.reads = {ref.value for ref in refs((op.args, op.kwargs))}


class CallPlan:
    """One planned call."""

    __slots__ = ("args", "described", "func", "has_random", "kept", "kind", "makers", "outs", "packs", "surroundings")

    def __init__(self, call: Call, kind: str) -> None:
        self.func, self.described, self.surroundings, self.kind = call.func, call.described, call.surroundings, kind
        # Value to the operator that makes it again.
        self.makers: dict[int, OpPlan] = {}
        # Positions of tensors among the flat arguments: (position, value, it is made again elsewhere).
        self.args: list[tuple[int, int, bool]] = []
        # Positions among the flat outputs, and among what autograd saves in the call: value, and how it lies.
        self.outs: list[tuple[int, int]] = []
        self.packs: dict[int, tuple[int, Any]] = {}
        # Values that autograd saves in the call and that its own operators read again.
        self.kept: set[int] = set()
        self.has_random = False

    def matches(self, func: Any, args: Any, kwargs: Any) -> bool:
        """The call will run the operators that were recorded."""
        if func is not self.func and func != self.func:
            return False
        _, were, named = self.described
        return agrees(args, were) and (not kwargs and not named or agrees(kwargs, named)) and surroundings(self.kind) == self.surroundings


def tables(step: Step, answer: dict[str, Any], kind: str) -> dict[tuple[Any, ...], dict[int, CallPlan]]:
    """By scope, then by number in the scope."""
    runs = {op for op, _ in answer["replays"]}
    again = {step.made[value] for value in answer["again"]}
    # Every value that a planned operator makes and that is not kept.
    made = {value for number in runs for _, value in step.ops[number].outs if value in again}
    plans: dict[int, CallPlan] = {}
    for number in sorted(runs):
        op = step.ops[number]
        call = op.call
        if call is None:
            raise AssertionError("an operator outside of a call is planned")
        plan = plans.get(call.number)
        if plan is None:
            plan = plans[call.number] = CallPlan(call, kind)
        one = OpPlan(op)
        plan.has_random = plan.has_random or one.is_random
        for _, value in op.outs:
            plan.makers[value] = one
    for number, plan in plans.items():
        call = step.calls[number]
        needed = {value for one in plan.makers.values() for value in one.reads}
        seen: set[int] = set()
        for position, value in enumerate(call.args):
            if value in needed and value not in seen:
                seen.add(value)
                plan.args.append((position, value, value in made))
        for position, value in enumerate(call.outs):
            if value in plan.makers and value in made and not any(value == other for _, other in plan.outs):
                plan.outs.append((position, value))
        for position, (value, geometry) in enumerate(call.packs):
            if value in plan.makers and value in made:
                plan.packs[position] = (value, geometry)
            elif value in needed and value not in call.args:
                plan.packs[position] = (value, geometry)
                plan.kept.add(value)
    found: dict[tuple[Any, ...], dict[int, CallPlan]] = {}
    for number, plan in plans.items():
        key = step.calls[number].key
        found.setdefault(key[:3], {})[key[3]] = plan
    return found
