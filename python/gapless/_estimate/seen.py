"""The observations of a run in words: the number of steps, what they had in common, unknown values that were read."""

import os
import re
from typing import Any

_TRUTHS = ("__bool__", "is_nonzero", "equal", "allclose", "__contains__")
_INSTALLED = re.compile(r"/\S*/(?:site|dist)-packages/")
_AT_LAST = "what it does later, such as an evaluation, is not counted"


def told(found: "dict[str, Any]") -> "list[str]":
    """Over how many steps the figures are, whether shapes vary, and how to see more; nothing for models that Gapless
    steps itself with batches that are alike."""
    steps, stopped = found["steps"], found.get("stopped")
    if "stopped" not in found or not steps:
        return ["the program was stopped when its time was over: more may come; --time-limit SECONDS gives it more"] if stopped else []
    over = f"over {steps} steps" if steps > 1 else "over 1 step"
    lines = [f"{over}, to the end of the program" if stopped is None else over]
    if found.get("varies") and found.get("largest") and found["spread"] >= 0.0005:
        largest = found["largest"]
        inputs = f": inputs {largest['inputs']}" if largest["inputs"] else ""
        lines[0] += f"; shapes vary by {found['spread']:.1%} of the peak"
        lines.append(f"the largest batch was that of step {largest['step']}{inputs}")
    if stopped == "steps":
        lines.append(f"stopped there as asked: {_AT_LAST}; --until-stable goes on until nothing new comes")
    elif stopped == "settled":
        lines.append(f"stopped there, as the last steps brought nothing new: {_AT_LAST}; --steps N goes on")
    elif stopped == "batches":
        lines.append("batches differ: larger ones may come; steps=N runs more of them")
    elif stopped == "time":
        lines.append("stopped there, as its time was over: more may come; --time-limit SECONDS gives it more, --until-stable all it needs")
    return lines


def reads(found: "dict[str, Any]") -> "list[str]":
    """Reads of unknown values: first those that decided something, then those that were only printed."""
    decided: dict[str, str] = found.get("decided", {})
    said = []
    printed = []
    for row in sorted(found["reads"], key=lambda row: row["place"] not in decided):
        place, times = row["place"], f"({row['times']} times)" if row["times"] > 1 else "(once)"
        if row["function"] == "a check":
            said.append(f"a check at {place} read a value that is not known, and was taken to pass {times}")
        elif place in decided:
            what = f"took the branch for {decided[place]}" if row["function"] in _TRUTHS else f"got {decided[place]}"
            if place in found.get("open_loops", []):
                what += ", so the loop there may make more rounds on a card than here"
            said.append(f"{row['function']} at {place} read a value that is not known, and {what} {times}: --assume {_short(place)}=VALUE says what it is")
        elif row["function"] in ("item", "tolist", "__float__"):
            printed.append(row)
        else:
            said.append(f"{row['function']} at {place} read a value that is not known, and got 0 {times}")
    if printed:
        where = printed[0]["place"] + (f" and {len(printed) - 1} more places" if len(printed) > 1 else "")
        said.append(f"numbers that are not known, such as losses, were read at {where}: they print as ?")
    if found.get("assumptions_unused"):
        said.append(f"nothing was assumed at {', '.join(found['assumptions_unused'])}: the program read no unknown value there")
    return said


def plain(sentence: str) -> str:
    """A sentence in which files of installed libraries are named from the library on."""
    return _INSTALLED.sub("", sentence)


def _short(place: str) -> str:
    file, _, line = place.rpartition(":")
    return f"{os.path.basename(file)}:{line}"
