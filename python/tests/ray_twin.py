"""A stand-in for the part of Ray that gapless.ray uses: nodes with resources, actors, placement groups, in one process.

It counts resources as Ray does, and refuses what a node does not have. Actors that are started are only records."""

import asyncio
import concurrent.futures
import importlib
import itertools
import sys
import threading
import types


class GetTimeoutError(Exception):
    pass


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class Ref(concurrent.futures.Future):
    def future(self):
        return self


class Group:
    """Ray's PlacementGroup."""

    def __init__(self, cluster, number, bundles, nodes):
        self.cluster, self.id, self.bundles, self.nodes = cluster, types.SimpleNamespace(hex=lambda: f"{number:x}"), bundles, nodes
        self.state, self.is_ready = "PENDING", Ref()

    def ready(self):
        return self.is_ready


class Started:
    """A task or an actor that was started, with its options."""

    def __init__(self, number, options, args):
        self.options, self.args, self.ref = options, args, Ref()
        self._actor_id = types.SimpleNamespace(hex=lambda: f"{number:x}")


class Cluster:
    def __init__(self):
        self.total, self.free, self.dead = {}, {}, set()
        self.groups, self.started, self.names, self.naming = [], {}, {}, threading.Lock()
        self.numbers = itertools.count(1)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def add(self, name, **resources):
        self.total[name], self.free[name] = dict(resources), dict(resources)

    def lose(self, name):
        """A node dies. Its part of a group is placed nowhere else, because the group names the node."""
        self.dead.add(name)
        for group in self.groups:
            if name in group.nodes and group.state == "CREATED":
                group.state = "RESCHEDULING"

    def take(self, node, amounts):
        free = self.free[node]
        if node in self.dead or any(free.get(name, 0) < amount for name, amount in amounts.items()):
            return False
        for name, amount in amounts.items():
            free[name] -= amount
        return True

    def give(self, node, amounts):
        for name, amount in amounts.items():
            self.free[node][name] += amount

    def settle(self):
        """Makes the groups that wait for resources, each whole."""
        for group in self.groups:
            if group.state != "PENDING":
                continue
            done = []
            for node, bundle in zip(group.nodes, group.bundles):
                if not self.take(node, bundle):
                    break
                done.append((node, bundle))
            if len(done) == len(group.bundles):
                group.state = "CREATED"
                group.is_ready.set_result(group)
            else:
                for node, bundle in done:
                    self.give(node, bundle)

    def end(self):
        """Ends the actors, and with them the processes that they started."""
        actors = [handle._actor for handle in self.names.values()]

        async def over():
            tasks = [actor._tending for actor in actors if actor._tending is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(over(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        for actor in actors:
            actor._placing.close()

    # What gapless.ray calls.

    def nodes(self):
        return [{"NodeID": name, "Alive": name not in self.dead, "Resources": dict(total)} for name, total in self.total.items()]

    def placement_group(self, bundles, strategy="PACK", name="", lifetime=None, bundle_label_selector=None):
        nodes = [selector["ray.io/node-id"] for selector in bundle_label_selector]
        assert len(nodes) == len(bundles)
        if strategy == "STRICT_PACK":
            assert len(set(nodes)) == 1
        if strategy == "STRICT_SPREAD":
            assert len(set(nodes)) == len(nodes)
        group = Group(self, next(self.numbers), bundles, nodes)
        self.groups.append(group)
        self.settle()
        return group

    def remove_placement_group(self, group):
        if group.state in ("CREATED", "RESCHEDULING"):
            for node, bundle in zip(group.nodes, group.bundles):
                self.give(node, bundle)
        group.state = "REMOVED"
        self.settle()

    def remote(self, *targets, **_):
        if not targets:
            return self.remote
        return Remote(self, targets[0])

    def get(self, refs, timeout=None):
        try:
            if isinstance(refs, list):
                return [self.get(ref, timeout) for ref in refs]
            return refs.result(timeout)
        except concurrent.futures.TimeoutError:
            raise GetTimeoutError from None

    def wait(self, refs, num_returns=1, timeout=None, fetch_local=True):
        return [ref for ref in refs if ref.done()], [ref for ref in refs if not ref.done()]


class Remote:
    def __init__(self, cluster, target, options=None):
        self.cluster, self.target, self.given = cluster, target, options or {}

    def options(self, **options):
        return Remote(self.cluster, self.target, options)

    def remote(self, *args):
        name = self.given.get("name")
        if not self.given.get("get_if_exists"):
            number = next(self.cluster.numbers)
            self.cluster.started[f"{number:x}"] = started = Started(number, self.given, args)
            return started if isinstance(self.target, type) else started.ref
        with self.cluster.naming:
            if name not in self.cluster.names:
                self.cluster.names[name] = Handle(self.cluster, self.target(*args))
            return self.cluster.names[name]


class Handle:
    """An asynchronous actor that runs: its methods run in one thread."""

    def __init__(self, cluster, actor):
        self._cluster, self._actor = cluster, actor

    def __getattr__(self, name):
        def remote(*args, **kwargs):
            ref = Ref()
            done = asyncio.run_coroutine_threadsafe(getattr(self._actor, name)(*args, **kwargs), self._cluster.loop)

            def tell(done):
                error = done.exception() if not done.cancelled() else RayError("cancelled")
                ref.set_exception(error) if error is not None else ref.set_result(done.result())

            done.add_done_callback(tell)
            return ref

        return types.SimpleNamespace(remote=remote)


def install(monkeypatch):
    """Puts the stand-in in Ray's place, and returns the cluster and gapless.ray over it."""
    cluster = Cluster()

    def module(name, **members):
        made = types.ModuleType(name)
        made.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    def actors(number):
        started = cluster.started.get(number)
        return {"State": "DEAD" if started is None or started.ref.done() else "ALIVE"}

    class Strategy(types.SimpleNamespace):
        pass

    state = module("ray._private.state", actors=actors, available_resources_per_node=lambda: {name: dict(free) for name, free in cluster.free.items()})
    private = module("ray._private", state=state)
    groups = module("ray.util.placement_group", PlacementGroup=Group)
    strategies = module("ray.util.scheduling_strategies", NodeAffinitySchedulingStrategy=Strategy, PlacementGroupSchedulingStrategy=Strategy)
    table = lambda group: {"state": group.state}  # noqa: E731
    calls = {"placement_group": cluster.placement_group, "remove_placement_group": cluster.remove_placement_group, "placement_group_table": table}
    util = module("ray.util", scheduling_strategies=strategies, **calls)
    exceptions = types.SimpleNamespace(GetTimeoutError=GetTimeoutError, RayActorError=RayActorError, RayError=RayError)
    here = types.SimpleNamespace(get_node_id=lambda: "head")
    members = {name: getattr(cluster, name) for name in ("nodes", "remote", "get", "wait")}
    module("ray", __version__="0", _private=private, util=util, exceptions=exceptions, is_initialized=lambda: True, get_runtime_context=lambda: here, **members)
    del groups
    for name in ("gapless.ray", "gapless._ray_desk", "gapless._ray_group"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = importlib.import_module("gapless.ray")
    for name in ("gapless.ray", "gapless._ray_desk", "gapless._ray_group"):
        # The next test, and real programs, must not find these.
        monkeypatch.setitem(sys.modules, name, sys.modules.pop(name))
    return cluster, found
