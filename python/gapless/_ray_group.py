"""Placement groups on Ray with GPU memory: bundles that are placed together, all of them or none.

The placement of Gapless chooses a node and GPUs for each bundle. A placement group of Ray's then takes the same bytes
there, so that Ray's account has them too, and ends with the program that made it.
"""

import inspect
import time
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import ray
from ray.util import placement_group as ray_group
from ray.util import placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ._errors import GaplessError, OptionError
from ._ray_desk import PREFIX

# Seconds between two looks at a group that is not ready.
_LOOK = 1.0
STRATEGIES = ("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD")


class PlacementGroup:
    """Bundles with their places. It can be an argument of tasks and actors."""

    def __init__(self, held: Any, bundles: list[dict[str, Any]]) -> None:
        # Ray's own group: tasks without GPU memory may run in it too.
        self.held = held
        # Each with "node", "gpus" and "bytes" of each of these GPUs.
        self.bundles = bundles

    def remove(self) -> None:
        """Ends what runs in the group, and frees its memory."""
        remove_placement_group(self.held)

    def where(self, at: int) -> PlacementGroupSchedulingStrategy:
        """The strategy of Ray's that runs a task in a bundle."""
        return PlacementGroupSchedulingStrategy(placement_group=self.held, placement_group_bundle_index=at)


def bundle_of(group: Any, bundle: Any) -> dict[str, Any]:
    """The bundle of a group that an option names."""
    if not isinstance(group, PlacementGroup):
        raise OptionError(f"placement_group={group!r} is not made by gapless.ray.placement_group()")
    if isinstance(bundle, bool) or not isinstance(bundle, int) or not 0 <= bundle < len(group.bundles):
        raise OptionError(f"bundle={bundle!r} is not one of 0 to {len(group.bundles) - 1}")
    return group.bundles[bundle]


def make(places: Sequence[Mapping[str, Any]], asked: Sequence[Any], strategy: str, name: str, lifetime: Optional[str]) -> Any:
    """Ray's placement group at these places. It may not be ready yet."""
    if "bundle_label_selector" not in inspect.signature(ray_group).parameters:
        raise GaplessError(f"Ray {ray.__version__} cannot tie a bundle to a node, which placement groups need: install a later one")
    bundles = []
    for place, request in zip(places, asked):
        bundle = {**request.extra, **{f"{PREFIX}{gpu}": float(place["bytes"]) for gpu in place["gpus"]}}
        bundle.update({key: float(amount) for key, amount in (("CPU", request.cpus), ("memory", request.memory)) if amount})
        bundles.append(bundle)
    selectors = [{"ray.io/node-id": place["node"]} for place in places]
    return ray_group(bundles, strategy=strategy, name=name, lifetime=lifetime, bundle_label_selector=selectors)


def until_ready(held: Any, end: Optional[float]) -> None:
    """Waits until Ray's group has its resources, at most until `end`. A group that was removed never has."""
    ready = held.ready()
    while True:
        left = _LOOK if end is None else min(_LOOK, max(0.0, end - time.monotonic()))
        try:
            ray.get(ready, timeout=left)
            return
        except ray.exceptions.GetTimeoutError:
            if (placement_group_table(held) or {}).get("state", "REMOVED") == "REMOVED":
                raise GaplessError("a node of the placement group was lost before Ray had made the group: make it again") from None
            if end is not None and time.monotonic() >= end:
                raise
