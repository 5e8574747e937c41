"""GPU memory on Ray: a task or an actor asks for bytes, and gets a GPU that has them.

    import gapless.ray

    @gapless.ray.remote(gpu_memory="18GiB")
    class Model: ...

    model = Model.remote()

Nodes say what they have in resources of their own, one for each GPU:

    ray start --address=... --num-gpus=0 --resources="$(python -m gapless.ray)"

Requests that only make sense together are bundles of a placement group, which has all of them or none:

    group = gapless.ray.placement_group([{"gpu_memory": "18GiB"}] * 4, strategy="STRICT_PACK")
    models = [Model.options(placement_group=group, bundle=at).remote() for at in range(4)]

The policy of Gapless chooses the node and the GPUs. The worker sees only these (CUDA_VISIBLE_DEVICES), and is a tenant
that Gapless holds to its bytes (GAPLESS_TENANT). What does not fit waits. See docs/fleet.md.
"""

import inspect
import json
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Callable, Optional, Union

from ._errors import GaplessError, OptionError
from ._options import positive_bytes
from ._program import call

try:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise ImportError(f"gapless.ray needs Ray, which cannot be imported ({error}): install it with `pip install ray`") from error

from ._ray_desk import NAME, NAMESPACE, PREFIX, Desk
from ._ray_group import STRATEGIES, PlacementGroup, bundle_of, make, until_ready
from ._ray_worker import enter

__all__ = ["PlacementGroup", "placement_group", "remote", "resources", "state"]

# The most desks that a request tries, if one after the other is lost.
_DESKS = 5
_MOST_BUNDLES = 1024

# Ray's options that say where something runs or how much of a GPU it gets: here the placement says so.
_OURS = {
    "num_gpus": "use gpu_memory and gpus",
    "scheduling_strategy": "the placement of Gapless chooses the node",
    "accelerator_type": "use models",
    "label_selector": "use models",
    "max_calls": "the worker of a task ends with it, because a CUDA context would keep GPU memory",
}


class _Request:
    """The options of a request, checked when the program writes it and not when it runs."""

    def __init__(self, given: dict[str, Any], is_actor: bool) -> None:
        options = dict(given)
        for name, instead in _OURS.items():
            if name in options:
                raise OptionError(f"gapless.ray.remote has no option {name}: {instead}")
        # The place is known before, if the request is for a bundle of a group.
        self.group: Optional[PlacementGroup] = options.pop("placement_group", None)
        self.bundle = options.pop("bundle", 0)
        self.place: Optional[dict[str, Any]] = None
        if self.group is not None:
            bundle = bundle_of(self.group, self.bundle)
            # Those of a decorator that names no group count where there is one.
            options.setdefault("gpu_memory", bundle["bytes"])
            options["gpus"] = len(bundle["gpus"])
            for name in ("models", "timeout"):
                options.pop(name, None)
        elif "bundle" in given:
            raise OptionError("bundle has no meaning without placement_group")
        if "gpu_memory" not in options:
            raise OptionError("gapless.ray.remote needs gpu_memory, such as gpu_memory='18GiB'")
        try:
            self.bytes = positive_bytes(options.pop("gpu_memory"))
        except ValueError as error:
            raise OptionError(f"gpu_memory={given['gpu_memory']!r} is not {error}") from None
        self.gpus = options.pop("gpus", 1)
        if isinstance(self.gpus, bool) or not isinstance(self.gpus, int) or not 1 <= self.gpus <= 1024:
            raise OptionError(f"gpus={self.gpus!r} is not a whole number from 1 to 1024")
        if self.group is not None:
            self.place = {**self.group.bundles[self.bundle], "bytes": self.bytes}
            if self.bytes > self.group.bundles[self.bundle]["bytes"]:
                raise OptionError(f"gpu_memory={given['gpu_memory']!r} is more than bundle {self.bundle} has: {self.group.bundles[self.bundle]['bytes']} bytes")
        self.words = f"{self.gpus} x {given.get('gpu_memory', self.bytes)}"
        models = options.pop("models", ())
        self.models = [models] if isinstance(models, str) else list(models)
        self.timeout: Optional[float] = options.pop("timeout", None)
        if self.timeout is not None and not (isinstance(self.timeout, (int, float)) and self.timeout >= 0):
            raise OptionError(f"timeout={self.timeout!r} is not a number of seconds")
        self.extra: dict[str, float] = dict(options.pop("resources", None) or {})
        wrong = [name for name in self.extra if name.startswith(PREFIX)]
        if wrong:
            raise OptionError(f"resources has {wrong[0]}: use gpu_memory, and the placement of Gapless chooses the GPU")
        self.cpus = options.pop("num_cpus", None)
        if self.cpus is None:
            # As in Ray: a task takes one CPU, an actor none while it lives.
            self.cpus = 0 if is_actor else 1
        self.memory = options.pop("memory", None)
        if not is_actor and options.get("num_returns", 1) in (0, "streaming", "dynamic"):
            raise OptionError(f"num_returns={options['num_returns']!r} is not supported: Gapless must be able to wait for the task's end")
        self.rest = options

    def pod(self, name: str) -> dict[str, Any]:
        pod: dict[str, Any] = {"name": name, "cpus": self.cpus, "gpus": self.gpus, "gpu_memory": self.bytes, "models": self.models}
        if self.memory is not None:
            pod["memory"] = int(self.memory)
        return pod

    def for_ray(self, place: dict[str, Any]) -> dict[str, Any]:
        """Ray's options for one call: the node, and the same bytes in Ray's own account."""
        amounts = {f"{PREFIX}{gpu}": float(place["bytes"]) for gpu in place["gpus"]}
        options = {**self.rest, "num_cpus": self.cpus, "resources": {**self.extra, **amounts}}
        if self.memory is not None:
            options["memory"] = self.memory
        if self.group is not None:
            options["scheduling_strategy"] = self.group.where(self.bundle)
        else:
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id=place["node"], soft=False)
        return options


class _Remote:
    """A function or a class with the decorator."""

    def __init__(self, target: Any, options: dict[str, Any]) -> None:
        self._target, self._options = target, options
        self._is_actor = inspect.isclass(target)
        self._request = _Request(options, self._is_actor)
        # A class is called as its __init__ is, without self.
        self._signature = inspect.signature(target)
        self._held = _actor(target) if self._is_actor else _task(target)
        self.__doc__ = target.__doc__
        self.__name__: str = target.__name__

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(f"{self.__name__} runs on the cluster: call {self.__name__}.remote() instead of {self.__name__}()")

    def options(self, **changes: Any) -> "_Remote":
        """The same with other options."""
        return _Remote(self._target, {**self._options, **changes})

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        """Starts it, as Ray's remote() does. If no GPU has the memory now, this waits for one, at most `timeout`
        seconds."""
        self._signature.bind(*args, **kwargs)
        name, request = _name(), self._request
        if request.place is not None:
            return self._start(None, name, request.place, args, kwargs)
        desk, place = _placed(name, lambda desk: desk.ask.remote(request.pod(name)), request.timeout, request.words)
        return self._start(desk, name, place, args, kwargs)

    def later(self, *args: Any, **kwargs: Any) -> "Future[Any]":
        """As remote(), without waiting: a future of what remote() would return. For programs that start more than
        fits at once, and for asynchronous actors."""
        self._signature.bind(*args, **kwargs)
        started: Future[Any] = Future()
        if self._request.place is not None:
            started.set_result(self.remote(*args, **kwargs))
            return started
        name, desk = _name(), _desk()

        def start(place: dict[str, Any]) -> None:
            try:
                started.set_result(self._start(desk, name, place, args, kwargs))
            except BaseException as error:
                started.set_exception(error)

        def placed(waited: "Future[dict[str, Any]]") -> None:
            error = waited.exception()
            if isinstance(error, ray.exceptions.RayActorError):
                # A callback must not wait, and the next desk may take a while.
                threading.Thread(target=again, daemon=True).start()
            elif error is not None:
                started.set_exception(error)
            else:
                start(waited.result())

        def again() -> None:
            try:
                started.set_result(self.remote(*args, **kwargs))
            except BaseException as error:
                started.set_exception(error)

        place = ray.get(desk.ask.remote(self._request.pod(name)))
        if "waits" in place:
            desk.wait.remote(name).future().add_done_callback(placed)
        else:
            start(place)
        return started

    def _start(self, desk: Any, name: str, place: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _refuse_never(place, self._request.words)
        try:
            started = self._held.options(**self._request.for_ray(place)).remote((name, place["gpus"], place["bytes"]), *args, **kwargs)
        except BaseException:
            if desk is not None:
                desk.free.remote(name)
            raise
        if desk is None:
            # The group has the memory.
            return started
        if self._is_actor:
            desk.claim.remote(name, actor=started._actor_id.hex())
        else:
            desk.claim.remote(name, task=[started[0] if isinstance(started, list) else started])
        return started


def remote(target: Optional[Any] = None, **options: Any) -> Any:
    """A decorator like ray.remote, for a function or a class that needs GPU memory.

    gpu_memory   bytes of each GPU, such as "18GiB"
    gpus         the number of GPUs, each with that many bytes (1)
    models       a model of GPU, or several, that it may run on (any)
    timeout      seconds that remote() waits for memory (as long as it takes)
    num_cpus, memory, resources, max_restarts, name, ...   as in Ray
    """
    if target is None:
        return lambda target: _Remote(target, options)
    return _Remote(target, options)


def placement_group(
    bundles: Sequence[Mapping[str, Any]], strategy: str = "PACK", *, timeout: Optional[float] = None, name: str = "", lifetime: Optional[str] = None
) -> PlacementGroup:
    """A placement group like Ray's, whose bundles have GPU memory: all of them are placed, or none.

    bundles    each with gpu_memory, and gpus, models, num_cpus (1), memory and resources as for remote()
    strategy   PACK, STRICT_PACK (one node), SPREAD or STRICT_SPREAD (a node each)
    timeout    seconds to wait for room (as long as it takes)
    name, lifetime   as in Ray

    Run a task or an actor in a bundle with the options placement_group=group and bundle=0. It takes its memory, or
    a part of it: gpu_memory="9GiB". If a node of the group is lost, the group is removed.
    """
    if strategy not in STRATEGIES:
        raise OptionError(f"strategy={strategy!r} is not one of {', '.join(STRATEGIES)}")
    if not bundles or len(bundles) > _MOST_BUNDLES:
        raise OptionError(f"a placement group has 1 to {_MOST_BUNDLES} bundles, not {len(bundles)}")
    asked = []
    for at, bundle in enumerate(bundles):
        wrong = set(bundle) - {"gpu_memory", "gpus", "models", "num_cpus", "memory", "resources"}
        if wrong:
            raise OptionError(f"bundle {at} has no option {min(wrong)}: use gpu_memory, gpus, models, num_cpus, memory or resources")
        asked.append(_Request(dict(bundle), is_actor=False))
    group = _name()
    pods = [request.pod(f"{group}.{at}") for at, request in enumerate(asked)]
    end = None if timeout is None else time.monotonic() + timeout
    what = f"{len(pods)} bundles by {strategy}"
    desk, place = _placed(group, lambda desk: desk.ask_group.remote(group, strategy, pods), timeout, what)
    _refuse_never(place, what)
    held = None
    try:
        held = make(place["places"], asked, strategy, name, lifetime)
        ray.get(desk.claim_group.remote(group, held))
        # Ray may have given the CPUs to others.
        until_ready(held, end)
    except BaseException as error:
        if held is not None:
            ray.util.remove_placement_group(held)
        desk.free.remote(group)
        if isinstance(error, ray.exceptions.GetTimeoutError):
            raise TimeoutError(f"Ray had no room for {what} within {timeout} s, though the GPUs had: wait longer, or ask for fewer CPUs") from None
        raise
    return PlacementGroup(held, place["places"])


def resources(reserve: Union[int, str] = 0) -> dict[str, int]:
    """What `ray start --resources` needs on this machine: the bytes of each GPU, less `reserve` for others."""
    kept = positive_bytes(reserve) if reserve not in (0, "0") else 0
    told = json.loads(call(["fleet", "agent", "--once", "--format", "json"], answers=(0, 1)).stdout)
    if not told["gpus"]:
        raise GaplessError(f"no GPU was found: {told['nvml']['reason'] or 'the driver knows none'}")
    found = {f"{PREFIX}{gpu['index']}": gpu["total"] - kept for gpu in told["gpus"] if gpu["total"] > kept}
    if len(found) < len(told["gpus"]):
        raise GaplessError(f"reserve={reserve!r} leaves nothing of a GPU")
    return found


def state() -> dict[str, Any]:
    """The account of the cluster: nodes, pods, how many wait, thousandths of GPUs free and in all."""
    found: dict[str, Any] = ray.get(_desk().state.remote())
    return found


def _placed(name: str, ask: Callable[[Any], Any], timeout: Optional[float], what: str) -> tuple[Any, dict[str, Any]]:
    """Asks the desk for places, and waits for them. The desk that gave them, and its answer."""
    desk = _desk()
    end = None if timeout is None else time.monotonic() + timeout
    place: dict[str, Any] = {}
    try:
        for left in reversed(range(_DESKS)):
            try:
                place = ray.get(ask(desk))
                if "waits" in place:
                    place = ray.get(desk.wait.remote(name), timeout=None if end is None else max(0.0, end - time.monotonic()))
                break
            except ray.exceptions.RayActorError:
                # The desk's node is lost: the next desk knows nothing of this request.
                if left == 0:
                    raise
                desk = _desk()
    except ray.exceptions.GetTimeoutError:
        desk.free.remote(name)
        raise TimeoutError(f"there was no room for {what} within {timeout} s ({place['why']}): wait longer with timeout=, or ask for less") from None
    except BaseException:
        # Interrupted while it waited: this process will not claim the place.
        desk.free.remote(name)
        raise
    return desk, place


def _refuse_never(place: dict[str, Any], what: str) -> None:
    if "never" not in place:
        return
    if not place["nodes"]:
        raise GaplessError(f'no node of the cluster has resources {PREFIX}0, ...: start nodes with --resources="$(python -m gapless.ray)"')
    raise GaplessError(f"{what} can never be placed: {place['never']}")


def _name() -> str:
    return "ray-" + uuid.uuid4().hex[:16]


def _desk() -> Any:
    """The cluster's desk, made on the node of the first program that needs it."""
    if not ray.is_initialized():
        ray.init()
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(Desk).options(
        name=NAME, namespace=NAMESPACE, lifetime="detached", get_if_exists=True, num_cpus=0, max_concurrency=100_000, scheduling_strategy=here
    )
    return actor.remote(os.environ.get("GAPLESS_PROGRAM"))


_Place = tuple[str, Sequence[int], int]


def _task(function: Callable[..., Any]) -> Any:
    def held(_gapless_place: _Place, *args: Any, **kwargs: Any) -> Any:
        enter(*_gapless_place)
        return function(*args, **kwargs)

    _look_like(held, function)
    return ray.remote(max_calls=1)(held)


def _actor(target: type) -> Any:
    class Held(target):  # type: ignore[misc]
        def __init__(self, _gapless_place: _Place, *args: Any, **kwargs: Any) -> None:
            enter(*_gapless_place)
            super().__init__(*args, **kwargs)

    _look_like(Held, target)
    return ray.remote(Held)


def _look_like(held: Any, target: Any) -> None:
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(held, name, getattr(target, name, None))


if __name__ == "__main__":
    print(json.dumps(resources()))
