"""The actor that places everything which asks for GPU memory on a Ray cluster.

There is one in a cluster, by its name. It knows the nodes by their resources `gmem_0`, `gmem_1`, ..., asks
`gapless fleet place` where a request goes, and lets the others wait. It frees what a task or an actor held when Ray
says that it has ended. Ray counts the same bytes itself, so a mistake here delays work and never over-commits a GPU.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Optional

import ray
from ray._private import state as ray_state  # the state of actors without Ray's dashboard
from ray.util import placement_group_table, remove_placement_group
from ray.util.placement_group import PlacementGroup

from ._errors import GaplessError
from ._placing import Placing

NAME = "gapless-desk"
NAMESPACE = "gapless"
PREFIX = "gmem_"
# Seconds between two looks at what has ended, and at the nodes.
_LOOK = 0.2
_LOOK_AT_NODES = 1.0
# Seconds after which a place that was not claimed is free again: its caller is gone.
_UNCLAIMED = 60.0


def gpus_of(resources: Mapping[str, float]) -> dict[int, int]:
    """Bytes of each GPU that a node's resources name, by the GPU's number."""
    found = {}
    for name, amount in resources.items():
        number = name[len(PREFIX) :]
        if name.startswith(PREFIX) and number.isdigit() and amount >= 1:
            found[int(number)] = int(amount)
    return dict(sorted(found.items()))


def node_of(listed: Mapping[str, Any]) -> Optional[dict[str, Any]]:
    """A node as `gapless fleet place` reads it; None without GPUs whose memory is known."""
    resources = listed["Resources"]
    gpus = gpus_of(resources)
    if not gpus:
        return None
    named = [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
    model = (listed.get("Labels") or {}).get("ray.io/accelerator-type") or (named[0] if named else "")
    return {
        "name": listed["NodeID"],
        "cpus": float(resources.get("CPU", 0)),
        "memory": int(resources.get("memory", 0)),
        "gpus": len(gpus),
        "model": model,
        # The placement takes the GPUs of a node as equal: if they differ, the smallest one is true for all.
        "gpu_memory": min(gpus.values()),
    }


class Desk:
    """Runs as an asynchronous actor: all methods run in one thread, one at a time between their awaits."""

    def __init__(self, program: Optional[str] = None) -> None:
        self._placing = Placing(program)
        # The numbers of each node's GPUs: the placement counts them from 0 without gaps.
        self._gpus: dict[str, list[int]] = {}
        self._nodes_seen = 0.0
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        # The time at which each place was given out that is not claimed yet.
        self._unclaimed: dict[str, float] = {}
        self._tasks: dict[str, Any] = {}
        self._actors: dict[str, str] = {}
        # The pods of each group, and Ray's placement group once it is made.
        self._groups: dict[str, list[str]] = {}
        self._made: dict[str, PlacementGroup] = {}
        # Bytes in use before this desk began, by node and GPU. They only ever shrink.
        self._found: dict[tuple[str, int], int] = {}
        self._held: dict[str, tuple[str, list[int], int]] = {}
        self._beginning = asyncio.Lock()
        self._tending: Optional[asyncio.Task[None]] = None

    async def ask(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The place of `pod`; {"waits": ...} if it waits for one, {"never": why} if there cannot be one.

        The answer comes at once: a caller that reads it before it asks again keeps the order of its requests, which
        Ray does not promise for the calls of an asynchronous actor."""
        await self._begin()
        answer = self._placing.ask("ask", pod=pod)
        if "never" in answer:
            # A node may have joined just now.
            await self._look_at_nodes()
            answer = self._placing.ask("ask", pod=pod)
        if "never" in answer:
            return {"never": answer["why"], "nodes": len(self._gpus)}
        if "place" in answer:
            return self._given(answer["place"])
        self._waiting[str(pod["name"])] = asyncio.get_running_loop().create_future()
        return {"waits": answer["waits"], "why": answer["why"]}

    async def ask_group(self, name: str, strategy: str, pods: list[dict[str, Any]]) -> dict[str, Any]:
        """The places of all `pods` as {"places": [...]}, or {"waits": ...} or {"never": why} as for one."""
        await self._begin()
        group = {"id": name, "strategy": strategy, "pods": pods}
        answer = self._placing.ask("group", **group)
        if "never" in answer:
            await self._look_at_nodes()
            answer = self._placing.ask("group", **group)
        if "never" in answer:
            return {"never": answer["why"], "nodes": len(self._gpus)}
        self._groups[name] = [str(pod["name"]) for pod in pods]
        if "places" in answer:
            return {"places": [self._given(place) for place in answer["places"]]}
        self._waiting[name] = asyncio.get_running_loop().create_future()
        return {"waits": answer["waits"], "why": answer["why"]}

    async def wait(self, name: str) -> dict[str, Any]:
        """Waits until a request that waits has a place, and returns it."""
        place: dict[str, Any] = await self._waiting[name]
        self._waiting.pop(name, None)
        return place

    async def claim(self, name: str, task: Optional[list[Any]] = None, actor: Optional[str] = None) -> None:
        """Says who holds a place: a task, by a list with one of its references, or an actor, by its id."""
        self._unclaimed.pop(name, None)
        if task is not None:
            self._tasks[name] = task[0]
        elif actor is not None:
            self._actors[name] = actor

    async def claim_group(self, name: str, made: PlacementGroup) -> None:
        """Says that the places of a group belong to Ray's placement group `made`."""
        for pod in self._groups.get(name, ()):
            self._unclaimed.pop(pod, None)
        self._made[name] = made

    async def free(self, name: str) -> None:
        """Gives a place back, or takes a request out of the queue."""
        self._free(name)

    async def state(self) -> dict[str, Any]:
        """Figures: nodes, pods, who waits, thousandths of GPUs."""
        await self._begin()
        self._placing.ask("check")
        return {"nodes": len(self._gpus), **self._placing.ask("state")}

    async def _begin(self) -> None:
        """Looks at the cluster once before the first answer; whoever asks meanwhile waits, in order."""
        async with self._beginning:
            if self._tending is None:
                await self._look_at_nodes(first=True)
                self._tending = asyncio.get_running_loop().create_task(self._tend())

    def _given(self, place: dict[str, Any]) -> dict[str, Any]:
        node, name = place["node"], place["id"]
        numbers = [self._gpus[node][gpu] for gpu in place["gpus"]]
        self._unclaimed[name] = time.monotonic()
        self._held[name] = (node, numbers, place["units"])
        return {"node": node, "gpus": numbers, "bytes": place["units"]}

    def _free(self, name: str) -> None:
        gone = self._waiting.pop(name, None)
        if gone is not None:
            gone.cancel()
        self._made.pop(name, None)
        for one in [name, *self._groups.pop(name, ())]:
            for table in (self._tasks, self._actors, self._unclaimed, self._held):
                table.pop(one, None)
            self._served(self._placing.ask("free", id=one))

    def _served(self, answer: dict[str, Any]) -> None:
        """Wakes those who were placed because something became free."""
        placed = {place["id"]: self._given(place) for place in answer["placed"]}
        for name, future in self._waiting.items():
            if future.done():
                continue
            pods = self._groups.get(name)
            if pods is None and name in placed:
                future.set_result(placed[name])
            elif pods is not None and all(pod in placed for pod in pods):
                future.set_result({"places": [placed[pod] for pod in pods]})

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            try:
                for name in await asyncio.to_thread(self._ended):
                    self._free(name)
                # Who waited and got a place when `gapless fleet place` was started again.
                self._served({"placed": self._placing.late()})
                if time.monotonic() - self._nodes_seen > _LOOK_AT_NODES:
                    await self._look_at_nodes()
            except (GaplessError, ray.exceptions.RayError, OSError) as error:
                print(f"gapless: the desk could not look at the cluster, and tries again: {error}", flush=True)

    def _ended(self) -> list[str]:
        """Names whose task or actor has ended, and names of places that were not claimed in time."""
        ended = []
        tasks = dict(self._tasks)
        if tasks:
            refs = list(tasks.values())
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)
            done = set(ready)
            ended = [name for name, ref in tasks.items() if ref in done]
        for name, actor in dict(self._actors).items():
            known = ray_state.actors(actor)
            if known and known.get("State") == "DEAD":
                ended.append(name)
        ended += self._ended_groups()
        late = time.monotonic() - _UNCLAIMED
        unclaimed = {name for name, given in dict(self._unclaimed).items() if given < late}
        group_of = {pod: name for name, pods in dict(self._groups).items() for pod in pods}
        return ended + sorted({group_of.get(name, name) for name in unclaimed})

    def _ended_groups(self) -> list[str]:
        """Groups that were removed. One that has lost a node is removed here: Ray would wait for that node for ever."""
        ended = []
        for name, made in dict(self._made).items():
            state = (placement_group_table(made) or {}).get("state", "REMOVED")
            lost = [pod for pod in self._groups.get(name, ()) if pod in self._held and self._held[pod][0] not in self._gpus]
            if state == "REMOVED":
                ended.append(name)
            elif lost:
                print(f"gapless: a node of placement group {made.id.hex()} is lost: the group is removed, make it again", flush=True)
                remove_placement_group(made)
        return ended

    async def _look_at_nodes(self, first: bool = False) -> None:
        self._nodes_seen = time.monotonic()
        listed = await asyncio.to_thread(ray.nodes)
        alive = {}
        for node in sorted((node for node in listed if node["Alive"]), key=lambda node: str(node["NodeID"])):
            described = node_of(node)
            if described is not None:
                alive[described["name"]] = (described, gpus_of(node["Resources"]))
        for name in [name for name in self._gpus if name not in alive]:
            # Ray never uses the name of a node again.
            self._placing.ask("close", node=name)
            del self._gpus[name]
        for name, (described, gpus) in alive.items():
            if name not in self._gpus:
                self._gpus[name] = list(gpus)
                self._served(self._placing.ask("node", node=described))
        if first or self._found:
            free = await asyncio.to_thread(ray_state.available_resources_per_node)
            self._look_at_found({name: gpus for name, (_, gpus) in alive.items()}, free, first)

    def _look_at_found(self, alive: Mapping[str, Mapping[int, int]], free: Mapping[str, Mapping[str, float]], first: bool) -> None:
        """Books memory that Ray says is in use and this desk has not placed: the places of a desk that was lost."""
        for node, gpus in alive.items():
            for at, (gpu, total) in enumerate(gpus.items()):
                ours = sum(held for where, numbers, held in self._held.values() if where == node and gpu in numbers)
                used = total - int(free.get(node, {}).get(f"{PREFIX}{gpu}", 0)) - ours
                before = self._found.get((node, gpu), 0)
                now = max(0, used) if first else min(before, max(0, used))
                if now == before:
                    continue
                name = f"found-{node}-{gpu}"
                if before:
                    self._served(self._placing.ask("free", id=name))
                    del self._found[(node, gpu)]
                if now:
                    pod = {"name": name, "gpus": 1, "gpu_memory": min(now, min(gpus.values()))}
                    self._placing.ask("restore", pod=pod, node=node, gpus=[at])
                    self._found[(node, gpu)] = now
