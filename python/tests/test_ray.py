"""gapless.ray without Ray, and the door to the placement that it uses. `cargo xtask test-fleet ray` has the rest, on a
real cluster."""

import concurrent.futures
import json
import random
import subprocess
import sys
import time

import pytest

import ray_twin
from conftest import ROOT
from gapless import GaplessError, OptionError
from gapless._placing import Placing


def test_without_ray_the_import_says_what_to_install():
    program = "import sys; sys.modules['ray'] = None\ntry:\n    import gapless.ray\nexcept ImportError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "gapless.ray needs Ray" in done.stdout and "pip install ray" in done.stdout, done.stdout + done.stderr


def test_the_placement_answers_and_its_errors_are_ours(command):
    placing = Placing(command)
    node = {"name": "a", "cpus": 8, "memory": 1 << 36, "gpus": 1, "gpu_memory": 80 << 30}
    assert placing.ask("node", node=node) == {"ok": True, "placed": []}
    pod = {"name": "p", "gpus": 1, "gpu_memory": 18 << 30}
    assert placing.ask("ask", pod=pod)["place"] == {"id": "p", "node": "a", "gpus": [0], "units": 18 << 30}
    with pytest.raises(GaplessError, match="invalid pod"):
        placing.ask("ask", pod={**pod, "gpu_memory": "lots"})
    with pytest.raises(GaplessError, match="unknown variant"):
        placing.ask("dance")
    assert json.dumps(placing.ask("state")["pods"]) == "1"
    placing.close()
    with pytest.raises(GaplessError, match="ended"):
        placing.ask("state")


def test_a_placement_that_is_killed_is_started_again_with_what_it_knew(command):
    placing = Placing(command)
    for name in ("a", "b", "gone"):
        placing.ask("node", node={"name": name, "cpus": 8, "memory": 1 << 36, "gpus": 1, "gpu_memory": 80 << 30})
    pod = {"gpus": 1, "gpu_memory": 50 << 30}
    placed = {name: placing.ask("ask", pod={**pod, "name": name})["place"] for name in ("p", "q", "r")}
    placing.ask("close", node=placed["r"]["node"])
    placing.ask("free", id="r")
    assert "waits" in placing.ask("ask", pod={**pod, "name": "late"})
    before = placing.ask("state")
    for _ in range(2):
        placing._process.kill()
        assert placing.ask("state") == before
        placing.ask("check")
        assert {name: placing.ask("find", id=name)["place"] for name in ("p", "q")} == {name: placed[name] for name in ("p", "q")}
        # A request that was on its way when the process ended is made once.
        placing._process.kill()
        assert "waits" in placing.ask("ask", pod={**pod, "name": "late"})
    placing._process.kill()
    assert [place["id"] for place in placing.ask("free", id="p")["placed"]] == ["late"]
    assert placing.late() == []
    placing._process.kill()
    assert placing.ask("state")["pods"] == 2
    placing.close()


def test_a_program_that_is_no_program_is_told(tmp_path):
    broken = tmp_path / "gapless"
    broken.write_text("not a program")
    with pytest.raises(GaplessError, match="cannot be started"):
        Placing(str(broken))


def test_a_group_that_waits_is_told_again_and_freed_whole(command):
    placing = Placing(command)
    placing.ask("node", node={"name": "a", "cpus": 8, "memory": 1 << 36, "gpus": 2, "gpu_memory": 80 << 30})
    pods = [{"name": f"g.{at}", "gpus": 1, "gpu_memory": 50 << 30} for at in range(2)]
    placing.ask("ask", pod={"name": "p", "gpus": 1, "gpu_memory": 50 << 30})
    assert "waits" in placing.ask("group", id="g", strategy="STRICT_PACK", pods=pods)
    assert "waits" in placing.ask("ask", pod={"name": "q", "gpus": 2, "gpu_memory": 60 << 30})
    for _ in range(2):
        placing._process.kill()
        assert (placing.ask("state")["pods"], placing.ask("state")["waiting"]) == (1, 2)
    # It is placed by the answer to another line, and by what a new process is told.
    placing._process.kill()
    assert [place["id"] for place in placing.ask("free", id="p")["placed"]] == ["g.0", "g.1"]
    placing._process.kill()
    assert placing.ask("state")["pods"] == 2
    # One that waits is taken out of the queue by its own id, also of what a new process is told.
    more = [{"name": f"h.{at}", "gpus": 1, "gpu_memory": 70 << 30} for at in range(2)]
    assert "waits" in placing.ask("group", id="h", strategy="SPREAD", pods=more)
    placing.ask("free", id="h")
    placing._process.kill()
    assert placing.ask("state")["waiting"] == 1
    placing.close()


GIB = 1 << 30


@pytest.fixture
def ray(monkeypatch, command):
    """gapless.ray over a stand-in for Ray."""
    monkeypatch.setenv("GAPLESS_PROGRAM", command)
    cluster, found = ray_twin.install(monkeypatch)
    found.cluster = cluster
    yield found
    cluster.end()


def until(holds, what):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def held(ray):
    """Bytes of GPUs that Ray's own account has given out."""
    cluster = ray.cluster
    return sum(cluster.total[node][name] - free for node, all_free in cluster.free.items() for name, free in all_free.items() if name != "CPU")


def test_a_group_is_placed_whole_and_its_bundles_are_tenants(ray):
    for name in ("a", "b"):
        ray.cluster.add(name, CPU=8, gmem_0=80 * GIB, gmem_1=80 * GIB)
    for strategy, nodes in (("STRICT_PACK", 1), ("PACK", 1), ("SPREAD", 2), ("STRICT_SPREAD", 2)):
        group = ray.placement_group([{"gpu_memory": "30GiB", "num_cpus": 2}, {"gpu_memory": "50GiB", "num_cpus": 2}], strategy=strategy)
        assert len({bundle["node"] for bundle in group.bundles}) == nodes, strategy
        assert [bundle["bytes"] for bundle in group.bundles] == [30 * GIB, 50 * GIB]
        assert held(ray) == 80 * GIB and ray.state()["pods"] == 2

        class Model:
            pass

        actor = ray.remote(Model, gpu_memory="20GiB").options(placement_group=group, bundle=1).remote()
        where = actor.options["scheduling_strategy"]
        assert (where.placement_group, where.placement_group_bundle_index) == (group.held, 1)
        (tenant, gpus, count), bundle = actor.args[0], group.bundles[1]
        assert tenant.startswith("ray-") and (list(gpus), count) == (bundle["gpus"], 20 * GIB)
        assert actor.options["resources"] == {f"gmem_{bundle['gpus'][0]}": float(20 * GIB)}
        whole = ray.remote(Model, placement_group=group, bundle=0).later().result(10)
        assert whole.args[0][2] == 30 * GIB
        group.remove()
        until(lambda: ray.state()["pods"] == 0, "the group's memory")
        assert held(ray) == 0


def test_what_cannot_be_is_refused_and_leaves_nothing(ray):
    ray.cluster.add("a", CPU=8, gmem_0=80 * GIB)
    ray.cluster.add("b", CPU=8, gmem_0=80 * GIB)
    one = {"gpu_memory": "50GiB", "num_cpus": 1}
    for bundles, options, part in [
        ([one], {"strategy": "NEAR"}, "STRICT_SPREAD"),
        ([], {}, "1 to 1024 bundles"),
        ([{"GPU": 1}], {}, "no option GPU"),
        ([{}], {}, "needs gpu_memory"),
        ([{"gpu_memory": "lots"}], {}, "gpu_memory"),
    ]:
        with pytest.raises(OptionError, match=part):
            ray.placement_group(bundles, **options)
    for bundles, strategy, part in [
        ([one] * 3, "STRICT_SPREAD", "too few"),
        ([one] * 2, "STRICT_PACK", "no node could hold all 2"),
        ([{**one, "gpu_memory": "81GiB"}], "PACK", "larger than any node"),
    ]:
        with pytest.raises(GaplessError, match=part):
            ray.placement_group(bundles, strategy=strategy)
    with pytest.raises(TimeoutError, match="no room"):
        ray.placement_group([one] * 3, timeout=0.05)
    # The GPUs have room, and Ray has given their CPUs to others.
    assert ray.cluster.take("a", {"CPU": 8}) and ray.cluster.take("b", {"CPU": 8})
    with pytest.raises(TimeoutError, match="fewer CPUs"):
        ray.placement_group([one] * 2, timeout=0.05)
    for node in ("a", "b"):
        ray.cluster.give(node, {"CPU": 8})
    until(lambda: (ray.state()["pods"], ray.state()["waiting"]) == (0, 0), "nothing is left")
    assert held(ray) == 0
    group = ray.placement_group([one] * 2)
    for options, part in [
        ({"placement_group": group, "bundle": 2}, "0 to 1"),
        ({"placement_group": group, "bundle": True}, "0 to 1"),
        ({"placement_group": "g"}, "not made by"),
        ({"placement_group": group, "gpu_memory": "51GiB"}, "more than bundle 0"),
        ({"bundle": 0, "gpu_memory": "1GiB"}, "without placement_group"),
    ]:
        with pytest.raises(OptionError, match=part):
            ray.remote(lambda: None, **options)


def test_a_group_waits_in_line_and_a_lost_node_ends_it(ray):
    for name in ("a", "b"):
        ray.cluster.add(name, CPU=8, gmem_0=80 * GIB)
    pair = [{"gpu_memory": "60GiB", "num_cpus": 1}] * 2
    first = ray.placement_group(pair, strategy="STRICT_SPREAD")
    waiting = concurrent.futures.ThreadPoolExecutor(1).submit(ray.placement_group, pair, "STRICT_SPREAD")
    until(lambda: ray.state()["waiting"] == 1, "a group that waits")
    # A desk whose placement is killed still knows who waits.
    ray.cluster.names["gapless-desk"]._actor._placing._process.kill()
    assert (ray.state()["pods"], ray.state()["waiting"]) == (2, 1)
    first.remove()
    second = waiting.result(60)
    assert held(ray) == 120 * GIB and ray.state()["pods"] == 2
    ray.cluster.lose("b")
    until(lambda: second.held.state == "REMOVED", "a group that has lost a node is removed")
    until(lambda: ray.state()["pods"] == 0, "its memory on the other node is free")
    with pytest.raises(GaplessError, match="too few"):
        ray.placement_group(pair, strategy="STRICT_SPREAD")
    ray.placement_group(pair[:1], timeout=60).remove()


def test_a_node_that_is_lost_before_a_group_is_ready_ends_the_wait(ray):
    ray.cluster.add("a", CPU=8, gmem_0=80 * GIB)
    assert ray.cluster.take("a", {"CPU": 8})
    waiting = concurrent.futures.ThreadPoolExecutor(1).submit(ray.placement_group, [{"gpu_memory": "60GiB", "num_cpus": 1}])
    until(lambda: ray.state()["pods"] == 1 and ray.cluster.groups, "Ray waits for a CPU")
    ray.cluster.lose("a")
    with pytest.raises(GaplessError, match="make it again"):
        waiting.result(60)
    until(lambda: ray.state()["pods"] == 0, "its memory is free")


def test_random_groups_never_take_more_than_a_gpu_has(ray):
    for name, gpus in (("a", 1), ("b", 2), ("c", 3)):
        ray.cluster.add(name, CPU=64, **{f"gmem_{gpu}": 80 * GIB for gpu in range(gpus)})
    chance, alive, made = random.Random(1), [], 0
    for _ in range(60):
        if alive and chance.random() < 0.4:
            alive.pop(chance.randrange(len(alive))).remove()
            until(lambda: ray.state()["pods"] == sum(len(group.bundles) for group in alive), "the desk has seen it")
        bundles = [{"gpu_memory": f"{chance.randint(1, 80)}GiB", "gpus": chance.randint(1, 2), "num_cpus": 1} for _ in range(chance.randint(1, 3))]
        try:
            # The stand-in fails on a group that its own account has no room for, or that breaks its strategy.
            alive.append(ray.placement_group(bundles, chance.choice(["PACK", "STRICT_PACK", "SPREAD", "STRICT_SPREAD"]), timeout=0.02))
            made += 1
        except (GaplessError, TimeoutError) as error:
            assert "fewer CPUs" not in str(error), "the GPUs had room, and Ray's account had not"
    assert made > 15
    for group in alive:
        group.remove()
    until(lambda: (ray.state()["pods"], ray.state()["waiting"]) == (0, 0), "nothing is left")
