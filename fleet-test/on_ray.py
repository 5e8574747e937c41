"""A real Ray with gapless.ray: eight raylets with made-up GPUs on this machine, and random sets of actors.

Each actor tells, from inside its worker, on which node it runs, which GPUs it sees and which tenant it is. After every
step: no GPU has more than it holds, and each actor is where the core of Gapless, asked directly with the same calls,
puts it. Those who wait get what others give back. Everything talks over 127.0.0.1.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GIB = 1 << 30
# The GPUs of each node and their memory, in GiB.
NODES = [(1, 80), (2, 80), (4, 24), (1, 141), (2, 141), (4, 80), (2, 24), (1, 48)]
# Workers find the package and the program by these.
os.environ["PYTHONPATH"] = str(ROOT / "python")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
sys.path.insert(0, str(ROOT / "python"))

import ray  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import gapless.ray  # noqa: E402
from gapless import GaplessError, OptionError  # noqa: E402
from gapless._placing import Placing  # noqa: E402
from gapless._ray_desk import gpus_of, node_of  # noqa: E402


class Model:
    """An actor that tells where it is."""

    def where(self) -> tuple[str, list[int], str]:
        gpus = [int(gpu) for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
        return ray.get_runtime_context().get_node_id(), gpus, os.environ["GAPLESS_TENANT"]


def where() -> tuple[str, list[int], str]:
    return Model().where()


class Started:
    """An actor as it was asked for."""

    def __init__(self, gib: int, gpus: int, future: Future[Any]) -> None:
        self.gib, self.gpus, self.future = gib, gpus, future
        self.handle: Any = None
        self.name = ""
        self.place: tuple[str, list[int]] | None = None


class Twin:
    """The core, asked directly: its answers are what Ray's actors must do."""

    def __init__(self) -> None:
        self.placing = Placing(os.environ.get("GAPLESS_PROGRAM"))
        self.numbers: dict[str, list[int]] = {}
        for listed in sorted(ray.nodes(), key=lambda node: str(node["NodeID"])):
            node = node_of(listed)
            if node is not None:
                self.placing.ask("node", node=node)
                self.numbers[node["name"]] = list(gpus_of(listed["Resources"]))
        self.places: dict[int, tuple[str, list[int]]] = {}
        self.count = 0

    def ask(self, gib: int, gpus: int, cpus: float = 0) -> int:
        self.count += 1
        pod = {"name": str(self.count), "cpus": cpus, "gpus": gpus, "gpu_memory": gib * GIB, "models": []}
        answer = self.placing.ask("ask", pod=pod)
        if "place" in answer:
            self.note(answer["place"])
        return self.count

    def free(self, number: int) -> None:
        self.places.pop(number, None)
        for place in self.placing.ask("free", id=str(number))["placed"]:
            self.note(place)

    def note(self, place: dict[str, Any]) -> None:
        numbers = self.numbers[place["node"]]
        self.places[int(place["id"])] = (place["node"], sorted(numbers[gpu] for gpu in place["gpus"]))


def until(holds: Any, what: str) -> None:
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.05)
    sys.exit(f"waited in vain for {what}; the desk says {gapless.ray.state()}")


class Check:
    """All actors that are alive, beside the twin."""

    def __init__(self) -> None:
        self.twin = Twin()
        self.alive: dict[int, Started] = {}
        self.actors = self.waited = 0
        self.fullest = 0.0
        self.sizes = {(node["NodeID"], gpu): size for node in ray.nodes() for gpu, size in gpus_of(node["Resources"]).items()}

    def start(self, gib: int, gpus: int) -> None:
        model = gapless.ray.remote(Model, gpu_memory=f"{gib}GiB", gpus=gpus)
        started = Started(gib, gpus, model.later())
        number = self.twin.ask(gib, gpus)
        self.alive[number] = started
        self.actors += 1
        self.waited += number not in self.twin.places

    def settle(self) -> None:
        """Ray's actors are where the twin's are, and no GPU has more than it holds."""
        expected = self.twin.places
        until(lambda: all(self.alive[number].future.done() for number in expected), "actors that fit")
        fresh = [number for number in expected if self.alive[number].place is None]
        told = ray.get([self.alive[number].future.result().where.remote() for number in fresh])
        for number, (node, gpus, tenant) in zip(fresh, told):
            started = self.alive[number]
            started.handle, started.place = started.future.result(), (node, gpus)
            if started.place != expected[number]:
                sys.exit(f"actor {number} runs at {started.place}; the core says {expected[number]}")
            if not tenant.startswith("ray-") or not tenant.endswith(f":{started.gib * GIB}"):
                sys.exit(f"actor {number} asked for {started.gib} GiB and is the tenant {tenant}")
        used: dict[tuple[str, int], int] = {}
        for number, started in self.alive.items():
            if started.place is None:
                if started.future.done():
                    sys.exit(f"actor {number} runs, but the core lets it wait")
                continue
            for gpu in started.place[1]:
                key = (started.place[0], gpu)
                used[key] = used.get(key, 0) + started.gib * GIB
        for key, held in used.items():
            if held > self.sizes[key]:
                sys.exit(f"GPU {key[1]} of node {key[0]} holds {held} of {self.sizes[key]} bytes")
            self.fullest = max(self.fullest, held / self.sizes[key])

    def end(self, numbers: list[int]) -> None:
        """Ends actors, one after the other if an actor waits, because then their order decides who gets what."""
        for number in numbers:
            does_wait = len(self.twin.places) < len(self.alive)
            ray.kill(self.alive.pop(number).handle)
            self.twin.free(number)
            if does_wait or number == numbers[-1]:
                pods, waiting = len(self.twin.places), len(self.alive) - len(self.twin.places)
                until(lambda: told() == (pods, waiting), f"{pods} pods, {waiting} waiting")  # noqa: B023
                self.settle()


def told() -> tuple[int, int]:
    state = gapless.ray.state()
    return state["pods"], state["waiting"]


def tasks(check: Check) -> None:
    """Tasks: each sees its GPU, more than fit at once all run, and their memory is free afterwards."""
    # Every GPU takes one of these at a time; there are more of them than GPUs.
    asked = gapless.ray.remote(where, gpu_memory="13GiB", num_cpus=1)
    refs = [asked.remote() for _ in range(24)]
    for node, gpus, tenant in ray.get(refs):
        if (node, gpus[0]) not in check.sizes or not tenant.endswith(f":{13 * GIB}"):
            sys.exit(f"a task ran at {node} {gpus} as {tenant}")
    until(lambda: told() == (0, 0), "the tasks' memory")


def refusals() -> None:
    """What cannot be is refused at once, with a reason."""
    for options, reason in [
        ({"gpu_memory": "18GiBB"}, "is not a number of bytes"),
        ({"gpu_memory": "1GiB", "num_gpus": 0.3}, "use gpu_memory"),
        ({"gpu_memory": "1GiB", "gpus": 0}, "whole number"),
        ({"gpu_memory": "1GiB", "resources": {"gmem_0": 1}}, "use gpu_memory"),
        ({}, "needs gpu_memory"),
    ]:
        try:
            gapless.ray.remote(Model, **options)
        except OptionError as error:
            if reason not in str(error):
                sys.exit(f"{options}: {error}")
        else:
            sys.exit(f"{options} should be refused ({reason})")
    for options, reason in [({"gpu_memory": "142GiB"}, "the largest GPU has 141"), ({"gpu_memory": "1GiB", "models": "B200"}, "model")]:
        try:
            gapless.ray.remote(Model, **options).remote()
        except GaplessError as error:
            if reason not in str(error):
                sys.exit(f"{options}: {error}")
        else:
            sys.exit(f"{options} should be refused ({reason})")


def waits(check: Check) -> None:
    """remote() gives up after its timeout, and what it asked for is not booked."""
    whole = gapless.ray.remote(Model, gpu_memory="141GiB")
    held = [whole.remote() for _ in range(3)]
    try:
        whole.options(timeout=0.5).remote()
    except TimeoutError:
        pass
    else:
        sys.exit("a fourth GPU of 141 GiB was found")
    until(lambda: told() == (3, 0), "an empty queue")
    for actor in held:
        ray.kill(actor)
    until(lambda: told() == (0, 0), "the actors' memory")


def placements() -> list[int]:
    """The processes `gapless fleet place` in this network namespace, which only this test has."""
    here, found = os.readlink("/proc/self/ns/net"), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if words[1:3] == [b"fleet", b"place"] and os.readlink(entry / "ns" / "net") == here:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def lost_desk(check: Check) -> None:
    """A placement and a desk that are lost are replaced: the new ones know what is in use, and who waits is served."""
    whole = gapless.ray.remote(Model, gpu_memory="141GiB")
    all_held = [whole.remote() for _ in range(3)]
    ray.get([held.where.remote() for held in all_held])
    waits = whole.later()
    until(lambda: told() == (3, 1), "an actor that waits")
    # That of this program is the twin's, which is not asked here.
    ours = check.twin.placing._process.pid
    for process in placements():
        if process != ours:
            os.kill(process, signal.SIGKILL)
    until(lambda: told() == (3, 1), "what the lost placement knew")
    ray.kill(ray.get_actor("gapless-desk", namespace="gapless"))
    time.sleep(1)
    until(lambda: gapless.ray.state()["pods"] >= 3, "what the lost desk had placed")
    ray.kill(all_held.pop())
    ray.kill(waits.result(timeout=60))
    for held in all_held:
        ray.kill(held)
    until(lambda: told() == (0, 0), "the memory of an actor that the lost desk had placed")


def groups(check: Check) -> None:
    """Placement groups: each bundle's actor runs where the group says; one that waits gets what another gives back."""
    model = gapless.ray.remote(Model, gpu_memory="1GiB")
    for strategy in ("PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"):
        group = gapless.ray.placement_group([{"gpu_memory": "18GiB", "num_cpus": 1}] * 3, strategy=strategy, timeout=60)
        actors = [model.options(placement_group=group, bundle=at, gpu_memory="9GiB").remote() for at in range(3)]
        nodes = []
        for bundle, (node, gpus, tenant) in zip(group.bundles, ray.get([actor.where.remote() for actor in actors])):
            if (node, gpus) != (bundle["node"], bundle["gpus"]) or not tenant.endswith(f":{9 * GIB}"):
                sys.exit(f"{strategy}: an actor runs at {node} {gpus} as {tenant}; its bundle is {bundle}")
            nodes.append(node)
        if {"STRICT_PACK": 1, "STRICT_SPREAD": 3}.get(strategy, len(set(nodes))) != len(set(nodes)):
            sys.exit(f"{strategy}: {nodes}")
        task = gapless.ray.remote(where, placement_group=group, bundle=2, gpu_memory="9GiB")
        if ray.get(task.remote())[0] != group.bundles[2]["node"]:
            sys.exit("a task ran outside its bundle")
        group.remove()
        until(lambda: told() == (0, 0), "the group's memory")
    # All GPUs of 141 GiB, then a group that waits for them, while the desk is lost.
    first = gapless.ray.placement_group([{"gpu_memory": "141GiB"}] * 3, timeout=60)
    try:
        gapless.ray.placement_group([{"gpu_memory": "100GiB"}] * 2, timeout=0.5)
    except TimeoutError:
        pass
    else:
        sys.exit("a group got GPUs that another has")
    until(lambda: told() == (3, 0), "an empty queue")
    ray.kill(ray.get_actor("gapless-desk", namespace="gapless"))
    time.sleep(1)
    until(lambda: gapless.ray.state()["pods"] >= 3, "what the lost desk had placed")
    first.remove()
    until(lambda: told() == (0, 0), "the memory of a group that the lost desk had placed")


def lost_node(cluster: Any) -> None:
    """A group that loses a node is removed, and its memory on other nodes is free."""
    node = cluster.add_node(num_cpus=4, num_gpus=0, resources={"gmem_0": 200 * GIB}, object_store_memory=80 << 20, include_dashboard=False)
    until(lambda: gapless.ray.state()["nodes"] == len(NODES) + 1, "a node that joins")
    group = gapless.ray.placement_group([{"gpu_memory": "200GiB"}, {"gpu_memory": "141GiB"}], timeout=60)
    until(lambda: told() == (2, 0), "a group")
    cluster.remove_node(node)
    until(lambda: told() == (0, 0), "the memory of a group that has lost a node")
    try:
        gapless.ray.placement_group([{"gpu_memory": "200GiB"}])
    except GaplessError:
        pass
    else:
        sys.exit("a GPU of a lost node was given out")
    del group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    began = time.monotonic()
    cluster = Cluster()
    try:
        small = {"object_store_memory": 80 << 20, "include_dashboard": False}
        for gpus, gib in NODES:
            cluster.add_node(num_cpus=16, num_gpus=0, resources={f"gmem_{gpu}": gib * GIB for gpu in range(gpus)}, **small)
        ray.init(address=cluster.address, log_to_driver=True, logging_level="warning")
        print(f"ray {ray.__version__}: {len(ray.nodes())} raylets after {time.monotonic() - began:.0f} s", flush=True)
        gapless.ray.state()
        check = Check()
        refusals()
        tasks(check)
        waits(check)
        lost_desk(check)
        groups(check)
        # The checks above have taught the desk's policy a mix: the twin begins where a new desk does.
        ray.kill(ray.get_actor("gapless-desk", namespace="gapless"))
        time.sleep(1)
        gapless.ray.state()
        check = Check()
        for number in range(asked.sets):
            for _ in range(chance.randint(1, 5)):
                gpus = 2 if chance.random() < 0.15 else 1
                check.start(chance.randint(1, 80 if gpus == 2 else 141), gpus)
            check.settle()
            # Some stay for the next sets; if an actor waits, enough go.
            placed = sorted(check.twin.places)
            count = min(len(placed), max(len(placed) - 14, chance.randint(0, 4)))
            leaving = chance.sample(placed, count)
            check.end(leaving)
            if number % 20 == 19:
                print(f"{number + 1} sets, {check.actors} actors, {check.waited} waited, {time.monotonic() - began:.0f} s", flush=True)
        while check.alive:
            check.end(sorted(check.twin.places))
        if told() != (0, 0):
            sys.exit(f"something is left: {told()}")
        lost_node(cluster)
        result = {"ray": ray.__version__, "sets": asked.sets, "actors": check.actors, "waited": check.waited}
        print(json.dumps({**result, "fullest": round(check.fullest, 4), "seconds": round(time.monotonic() - began)}))
        print(f"ray: {check.actors} actors in {asked.sets} sets, each where the core puts it, no GPU over")
        print(f"{asked.sets + 6} passed, 0 failed")
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
