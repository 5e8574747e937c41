"""A recorded step as the planner reads it (`gapless fit-into`), and the planner's answer."""

import json
import os
import tempfile
from typing import Any, Optional

from .. import _program
from .operators import Nature
from .record import Call, Op, Recorder, Value

# Microseconds of the program's thread for each call in a watched scope, and for each planned call.
_WATCH_US, _CALL_US = 2.0, 8.0


class Step:
    """A recorded step: the recorder's lists, what may run again, and the costs."""

    def __init__(self, recorder: Recorder, costs: list[float], times: dict[str, float], min_size: int, launch_us: float) -> None:
        self.ops: list[Op] = recorder.ops
        self.values: list[Value] = recorder.values
        self.calls: list[Call] = recorder.calls
        self.costs, self.times, self.launch_us, self.min_size = costs, times, launch_us, min_size
        self.asks = recorder.asks
        # Numbers of the values that the step made, as the planner counts them, and back.
        self.made = [value.number for value in self.values if value.birth is not None]
        self.planned = {number: at for at, number in enumerate(self.made)}
        self.again = [False] * len(self.ops)
        self._refs = [recorder.refs_of(op) if op.call is not None else [] for op in self.ops]
        self._saved_in: dict[int, set[int]] = {call.number: {value for value, _ in call.packs} for call in self.calls}
        self._find_again()

    def _find_again(self) -> None:
        """An operator may run again if it is functional and each of its inputs can be had: made in the same call by an
        operator that may run again, saved in that call, or an argument of the call."""
        random: set[int] = set()
        for number, op in enumerate(self.ops):
            call = op.call
            if call is None or call.described is None or op.nature not in (Nature.PURE, Nature.RANDOM):
                # A second generator's numbers in one call would not begin with the state at its begin.
                if call is not None and op.nature is Nature.OPAQUE:
                    random.add(call.number)
                continue
            if op.nature is Nature.RANDOM:
                if call.number in random:
                    continue
                random.add(call.number)
            self.again[number] = all(self._can_have(ref.value, call) for ref in self._refs[number]) and all(
                not self.values[value].writers for _, value in op.outs
            )

    def _can_have(self, number: int, call: Call) -> bool:
        value = self.values[number]
        if value.writers:
            return False
        if number in call.args:
            return True
        return value.birth is not None and self.ops[value.birth].call is call and (self.again[value.birth] or number in self._saved_in[call.number])

    def _can_hold(self, value: Value) -> bool:
        """Each operator that would read it again can find it as it was."""
        return all(value.number in call.args or value.number in self._saved_in[call.number] for call in self._readers.get(value.number, ()))

    def to_json(self) -> dict[str, Any]:
        self._readers: dict[int, list[Call]] = {}
        for number, op in enumerate(self.ops):
            if self.again[number] and op.call is not None:
                for ref in self._refs[number]:
                    self._readers.setdefault(ref.value, []).append(op.call)
        alike: dict[Any, int] = {}
        return {
            "schema": "gapless.step/1",
            "time_us": self.times["step"],
            "launch_us": self.launch_us,
            "watch": self._watch(),
            "ops": [self._op(number, op) for number, op in enumerate(self.ops)],
            "values": [self._value(self.values[number], alike) for number in self.made],
            "asks": [(event, self.planned[value]) for event, value in self.asks if value in self.planned],
        }

    def _watch(self) -> dict[str, Any]:
        scopes: dict[Any, int] = {}
        of = [scopes.setdefault(call.key[:3], len(scopes)) for call in self.calls]
        counts = [0] * len(scopes)
        for scope in of:
            counts[scope] += 1
        return {
            "thread_us": self.times["thread"],
            "device_us": self.times["forward"],
            "call_us": _CALL_US,
            "scope_us": [count * _WATCH_US for count in counts],
            "scope_of": of,
        }

    def _op(self, number: int, op: Op) -> dict[str, Any]:
        return {
            "name": str(op.func),
            "place": _pattern(op.call.key[1]) if op.call is not None else "",
            "cost": self.costs[number],
            "ins": sorted({self.planned[value] for value in op.ins if value in self.planned}),
            "outs": [self.planned[value] for _, value in op.outs],
            "call": op.call.number if op.call is not None else None,
            "again": self.again[number],
            "before": op.before,
            "crest": op.crest,
        }

    def _value(self, value: Value, alike: dict[Any, int]) -> dict[str, Any]:
        birth = value.birth or 0
        op = self.ops[birth]
        is_big = value.size >= self.min_size
        drop = is_big and value.saved and not value.writers and value.need is not None and self.again[birth]
        position = next((at for at, (_, number) in enumerate(op.outs) if number == value.number), 0)
        key: Any = (op.call.key[1], op.call.key[3], op.offset, position) if op.call is not None else ("", birth, 0, position)
        if op.call is not None:
            key = (_pattern(key[0]), *key[1:], str(op.func))
        return {
            "size": value.size,
            "birth": birth,
            "natural": value.natural,
            "death": value.death,
            "need": value.need,
            "drop": drop,
            "hold": not value.writers and self._can_hold(value),
            "alike": alike.setdefault(key, len(alike)),
        }


def _pattern(path: str) -> str:
    """The path of a block without its number."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


def ask(step: dict[str, Any], budget: Optional[int], seconds: float = 3.0, points: int = 0) -> dict[str, Any]:
    """The program's answer to a step and a budget."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "step.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(step, file)
        command = ["fit-into", path, "--format", "json", "--time-limit", f"{max(1, round(seconds * 1000))}ms"]
        if budget is not None:
            command += ["--budget", f"{budget}B"]
        if points:
            command += ["--frontier", str(points)]
        answer: dict[str, Any] = json.loads(_program.call(command, (0, 1)).stdout)
    return answer
