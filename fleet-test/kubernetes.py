"""A real Kubernetes with `gapless fleet serve`: the stock scheduler, nodes and pods of a production cluster.

1. The scheduler without and with the extender, on the same pods: pods a second, times of the extender, and every
   placement equal to that of `gapless fleet sim --online` for the order in which the scheduler asked.
2. A cluster that overflows: the share of GPUs that is allocated equals the simulation's, and refused pods say why.
3. Pods that vanish between filter and bind, annotations edited by hand, requests larger than any GPU, devices of other
   pods, an API server that does not answer, nodes that vanish.
4. Two schedulers with a replica of the extender each, which want the same GPUs at once: whoever comes second finds
   another GPU, or is tried again soon.
5. The same two, killed at 50 random moments, while pods come and go: no GPU is over-booked, no pod is lost.

Each part has a cluster of its own on 127.0.0.1, and everything ends with it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import http.client
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kubernetes_build import build
from kubernetes_cluster import Api, Cluster, Object, is_up, metrics, until

ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "testdata" / "fleet"
GIB = 1 << 30
PASSED: list[str] = []


def check(holds: bool, what: str) -> None:
    """One thing that must hold."""
    if not holds:
        sys.exit(f"FAILED: {what}")
    PASSED.append(what)
    print(f"  ok: {what}", flush=True)


def read(name: str) -> list[dict[str, str]]:
    """A list of the trace."""
    text = subprocess.run(["zstd", "-dc", str(TRACE / f"{name}.csv.zst")], capture_output=True, text=True, check=True)
    return list(csv.DictReader(text.stdout.splitlines()))


def trace_node(row: dict[str, str]) -> Object:
    """A node of the trace, whose GPUs are counted in thousandths."""
    notes = {"gapless.dev/gpus": row["gpu"], "gapless.dev/gpu-model": row["model"]}
    return node(row["sn"], notes, f"{row['cpu_milli']}m", f"{row['memory_mib']}Mi")


def node(name: str, notes: dict[str, str], cpu: str = "64", memory: str = "512Gi") -> Object:
    sizes = {"cpu": cpu, "memory": memory, "pods": "1001"}
    status = {"capacity": sizes, "allocatable": sizes}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": notes}, "status": status}


def gpu_node(name: str, gpus: int, gib: int) -> Object:
    """A node whose GPUs are counted in bytes."""
    uuids = ",".join(f"GPU-{name}-{gpu}" for gpu in range(gpus))
    notes = {"gapless.dev/gpus": str(gpus), "gapless.dev/gpu-memory": f"{gib}GiB", "gapless.dev/gpu-uuids": uuids}
    return node(name, notes | {"gapless.dev/gpu-model": "H200"})


def trace_pod(row: dict[str, str], name: str) -> Object:
    notes = {"gapless.dev/gpus": row["num_gpu"]}
    if int(row["num_gpu"]) > 0:
        notes["gapless.dev/gpu-milli"] = row["gpu_milli"]
        if row["gpu_spec"]:
            notes["gapless.dev/gpu-models"] = row["gpu_spec"]
    return pod(name, notes, cpu=f"{row['cpu_milli']}m", memory=f"{row['memory_mib']}Mi")


def pod(name: str, notes: dict[str, str], cpu: str = "100m", memory: str = "1Gi", scheduler: str = "gapless") -> Object:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    spec = {"schedulerName": scheduler, "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": notes}, "spec": spec}


class Quiet:
    """Judges times only if the machine's processors were for the test."""

    def __init__(self) -> None:
        self.ours, self.began, self.start = 0.0, self.busy(), time.process_time()

    def busy(self) -> float:
        """Seconds that all processors were busy, since the machine started."""
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:8]]
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")

    def add(self, cluster: Cluster) -> None:
        self.ours += sum(one.processor_seconds() for one in cluster.daemons)

    def check(self, holds: bool, what: str) -> None:
        others = 1 - (self.ours + time.process_time() - self.start) / max(self.busy() - self.began, 1e-9)
        if others > 0.2 and not holds:
            print(f"  not judged, because others used {others:.0%} of the busy time of the processors: {what}", flush=True)
        else:
            check(holds, what)


class Trace:
    """Nodes and pods, with what the simulation does with them."""

    def __init__(self, gapless: Path, home: Path, nodes: list[dict[str, str]], level: float, most: int | None) -> None:
        self.nodes = nodes
        rows = {row["name"]: row for row in read("openb_pod_list_default")}
        home.mkdir(parents=True, exist_ok=True)
        self.gapless, self.home = gapless, home
        first = self.simulate(list(rows.values()), ["--arrivals", str(level), "--seed", "42"])
        order = [rows[row["pod"].split("-tuned-")[0]] for row in self.log()][:most]
        self.pods = [row | {"name": f"p{number:05}"} for number, row in enumerate(order)]
        self.known_mix_share = first["allocated_share"]

    def replay(self, log: Path) -> tuple[Object, dict[str, tuple[str, str]]]:
        """The simulation of the order in which an extender was asked, and where it puts the pods."""
        asked: dict[str, None] = {}
        for line in log.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") in ("chosen", "refused"):
                asked.setdefault(event["pod"].removeprefix("default/"))
        rows = {row["name"]: row for row in self.pods}
        timed = [rows[name] | {"creation_time": str(number), "deletion_time": ""} for number, name in enumerate(asked)]
        result = self.simulate(timed, ["--times", "--online"])
        return result, {row["pod"]: (row["node"], row["gpus"]) for row in self.log() if row["status"] == "placed"}

    def simulate(self, pods: list[dict[str, str]], words: list[str]) -> Object:
        home = self.home
        for name, rows in [("nodes", self.nodes), ("pods", pods)]:
            with (home / f"{name}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        lists = ["--nodes", str(home / "nodes.csv"), "--pods", str(home / "pods.csv"), "--log", str(home / "log.csv")]
        done = subprocess.run([str(self.gapless), "fleet", "sim", *lists, *words, "--format", "json"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"the simulation failed: {done.stderr}")
        result: Object = json.loads(done.stdout)
        return result

    def log(self) -> list[dict[str, str]]:
        with (self.home / "log.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    def create(self, api: Api) -> None:
        api.create_nodes(trace_node(row) for row in self.nodes)
        api.create_pods(trace_pod(row, row["name"]) for row in self.pods)


def places(pods: list[Object]) -> dict[str, tuple[str, str]]:
    """Node and GPUs of the pods that are bound."""
    found = {}
    for one in pods:
        if at := one["spec"].get("nodeName"):
            found[one["metadata"]["name"]] = (at, one["metadata"].get("annotations", {}).get("gapless.dev/gpu-indices", ""))
    return found


def attempts(port: int) -> dict[str, int]:
    """How many pods a scheduler has bound, and how many it found no node for."""
    found = {"scheduled": 0, "unschedulable": 0}
    try:
        values = metrics(port)
    except OSError:
        return found
    for name, value in values.items():
        for result in found:
            if name.startswith("scheduler_schedule_attempts_total") and f'result="{result}"' in name:
                found[result] += int(value)
    return found


def rate(api: Api, port: int, wanted: int, seconds: float, all_fit: bool = True) -> float:
    """Waits until a scheduler has bound `wanted` pods, or tried so many; pods a second from the first to the last."""
    began = None
    end = time.monotonic() + seconds
    count = 0
    looked = time.monotonic()
    while count < wanted:
        if time.monotonic() > looked + 15:
            # On a busy machine the scheduler gives up binds that the extender then completes: the pods tell.
            looked = time.monotonic()
            if len(places(api.pods())) >= wanted:
                break
        if time.monotonic() > end:
            sys.exit(f"the scheduler has bound {count} of {wanted} pods in {seconds:.0f} s: {attempts(port)}")
        time.sleep(0.1)
        tried = attempts(port)
        count = tried["scheduled"] + (0 if all_fit else tried["unschedulable"])
        if count > 0 and began is None:
            began = (time.monotonic(), count)
    assert began is not None
    return (wanted - began[1]) / max(time.monotonic() - began[0], 1e-9)


def within(values: dict[str, float], verb: str, bound: str) -> float:
    """The share of an extender's answers that took at most `bound` seconds."""
    name = "gapless_fleet_request_seconds"
    return values[f'{name}_bucket{{verb="{verb}",le="{bound}"}}'] / max(values[f'{name}_count{{verb="{verb}"}}'], 1)


def mean(values: dict[str, float], verb: str) -> float:
    name = "gapless_fleet_request_seconds"
    return values[f'{name}_sum{{verb="{verb}"}}'] / max(values[f'{name}_count{{verb="{verb}"}}'], 1)


def speed(home: Path, programs: Path, gapless: Path, count: int) -> None:
    """Part 1."""
    trace = Trace(gapless, home / "sim", read("openb_node_list_gpu_node"), 1.3, count)
    print(f"{len(trace.nodes)} nodes, {len(trace.pods)} pods", flush=True)
    rates = {}
    quiet = Quiet()
    for name, with_extender in [("with", True), ("without", False)]:
        with Cluster(home / name, programs, gapless) as cluster:
            trace.create(cluster.api)
            extender = cluster.extender("extender")[1] if with_extender else None
            _, port = cluster.scheduler("gapless", extender)
            # Alone, it spreads pods over all nodes, and has no room for some large ones at the end.
            rates[name] = rate(cluster.api, port, len(trace.pods), 600, all_fit=with_extender)
            used = ", ".join(f"{one.log.stem} {one.processor_seconds():.1f}" for one in cluster.daemons)
            print(f"  {name} the extender: {rates[name]:.0f} pods a second; seconds of processors: {used}", flush=True)
            quiet.add(cluster)
            if extender is not None:
                values = metrics(extender)
                found = places(cluster.api.pods())
                _, simulated = trace.replay(cluster.home / "extender.log")
    for verb in ["filter", "bind", "bind-own"]:
        figures = ", ".join(f"{bound} s: {within(values, verb, bound):.2%}" for bound in ["0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025"])
        print(f"  {verb}: mean {mean(values, verb) * 1e3:.2f} ms; answers within {figures}")
    wrong = [name for name in simulated if found.get(name) != simulated[name]]
    check(len(found) == len(simulated) == len(trace.pods), f"{len(found)} pods are bound, as in the simulation")
    check(not wrong, f"every pod is on the node and GPUs of the simulation (else: {len(wrong)}, first {wrong[:3]})")
    quiet.check(within(values, "filter", "0.005") >= 0.99, "99 % of the filter's answers within 5 ms")
    quiet.check(within(values, "bind-own", "0.005") >= 0.99, "99 % of binds within 5 ms, without the API server's part")
    quiet.check(rates["with"] >= min(300.0, 0.9 * rates["without"]), "as many pods a second as the scheduler reaches alone (less 10 % for noise), or 300")


def overflow(home: Path, programs: Path, gapless: Path, every: int) -> None:
    """Part 2."""
    trace = Trace(gapless, home / "sim", read("openb_node_list_gpu_node")[::every], 1.3, None)
    gpus = sum(int(row["gpu"]) for row in trace.nodes)
    print(f"{len(trace.nodes)} nodes with {gpus} GPUs, {len(trace.pods)} pods: 130 %", flush=True)
    with Cluster(home / "cluster", programs, gapless) as cluster:
        trace.create(cluster.api)
        _, extender = cluster.extender("extender")
        _, port = cluster.scheduler("gapless", extender)
        began = time.monotonic()
        # Pods that are refused are tried again and again; all were tried once if the scheduler has so many attempts.
        rate(cluster.api, port, len(trace.pods), 600, all_fit=False)
        log = cluster.home / "extender.log"

        def is_calm() -> bool:
            before = len(places(cluster.api.pods()))
            time.sleep(3)
            return len(places(cluster.api.pods())) == before

        until(is_calm, "the last binds", 120)
        result, simulated = trace.replay(log)
        pods = cluster.api.pods()
        events = cluster.api.events(next(one["metadata"]["name"] for one in pods if "nodeName" not in one["spec"]))
    found = places(pods)
    demand = {row["name"]: int(row["num_gpu"]) * int(row["gpu_milli"]) for row in trace.pods}
    share = sum(demand[name] for name in found) / (10.0 * gpus)
    wanted = result["allocated_share"]
    known = trace.known_mix_share
    print(f"  {time.monotonic() - began:.0f} s; {share:.3f} % of the GPUs allocated, simulated {wanted:.3f} %, with the mix known {known:.3f} %")
    check(abs(share - wanted) < 0.001, "the share of GPUs that is allocated equals the simulation's")
    wrong = [name for name in simulated if found.get(name) != simulated[name]]
    check(found.keys() == simulated.keys() and not wrong, f"and so does every single place (else: {len(wrong)}, first {wrong[:3]})")
    check(any("Gapless" in event for event in events), f"a pod that was refused says why: {events[-1][:120] if events else None}")


def judge(api: Api, gib: int, gpus: int) -> tuple[int, list[Object]]:
    """No GPU is over-booked, by what the pods say. Gives the number of bound pods, and all pods."""
    pods = api.pods()
    held: dict[tuple[str, str], int] = defaultdict(int)
    bound = 0
    for one in pods:
        at, notes = one["spec"].get("nodeName"), one["metadata"].get("annotations", {})
        if at is None:
            continue
        bound += 1
        if notes.get("gapless.dev/node") != at or not notes.get("gapless.dev/gpu-indices"):
            sys.exit(f"FAILED: {one['metadata']['name']} is bound to {at} without GPUs: {notes}")
        for gpu in notes["gapless.dev/gpu-indices"].split(";"):
            if int(gpu) >= gpus:
                sys.exit(f"FAILED: {one['metadata']['name']} has GPU {gpu} of {gpus}")
            held[at, gpu] += int(notes["gapless.dev/gpu-booked"])
    over = {place: size for place, size in held.items() if size > gib * GIB}
    if over:
        sys.exit(f"FAILED: over-booked {over}")
    return bound, pods


def has_event(api: Api, pod: str, part: str) -> bool:
    return any(part in event for event in api.events(pod))


def oddities(home: Path, programs: Path, gapless: Path) -> None:
    """Part 3."""
    print("bad input", flush=True)
    with Cluster(home / "cluster", programs, gapless) as cluster:
        api = cluster.api
        api.create_nodes([gpu_node("n0", 2, 80), gpu_node("n1", 2, 40)])
        extender, port = cluster.extender("extender")
        cluster.scheduler("gapless", port)
        wrong = {
            "toolarge": ({"gapless.dev/gpu-memory": "90GiB"}, "the largest GPU has 80.0 GiB"),
            "nonsense": ({"gapless.dev/gpu-memory": "lots"}, "invalid size"),
            "negative": ({"gapless.dev/gpus": "-1"}, "invalid number"),
            "overflow": ({"gapless.dev/gpu-memory": "99999999999999999999GiB"}, "gapless.dev/gpu-memory"),
            "nomodel": ({"gapless.dev/gpu-memory": "1GiB", "gapless.dev/gpu-models": "T4"}, "model"),
        }
        api.create_pods(pod(name, notes) for name, (notes, _) in wrong.items())
        for name, (_, part) in wrong.items():
            until(partial(has_event, api, name, part), f"{name}: an event with {part!r}", 60)
        message = next(event for event in api.events("toolarge") if "largest" in event)
        check(True, f"an event names the largest GPU: {message[:150]}")
        for name in wrong:
            api.delete_pod(name)

        # Pods that are deleted as soon as they are made: some vanish between filter and bind.
        for number in range(200):
            api.create_pods([pod(f"brief{number}", {"gapless.dev/gpu-memory": "30GiB"})])
            if number % 2:
                time.sleep(random.Random(number).random() * 0.02)
            api.delete_pod(f"brief{number}")
        kick = Kick(api, "n0")
        # The large ones first: a small one would take half of a large GPU.
        api.create_pods(pod(f"stays{number}", {"gapless.dev/gpu-memory": "80GiB"}) for number in (0, 1))
        until(lambda: kick() and judge(api, 80, 2)[0] == 2, "two pods on the large GPUs that brief ones had", 120, 0.5)
        api.create_pods(pod(f"stays{number}", {"gapless.dev/gpu-memory": "40GiB"}) for number in (2, 3))
        until(lambda: kick() and judge(api, 80, 2)[0] == 4, "two pods on the small GPUs that brief ones had", 120, 0.5)
        check(True, "200 pods that vanish leave nothing: the cluster can be filled to the last byte")

        shares = {one["metadata"]["uid"]: one["metadata"]["annotations"].get("gapless.dev/tenant", "") for one in api.pods()}
        right = all(share.startswith(f"pod-{uid}:") for uid, share in shares.items())
        check(right, "each pod says which tenant it is, with its bytes")

        # Annotations edited by hand.
        api.patch("/api/v1/namespaces/default/pods/stays0", {"metadata": {"annotations": {"gapless.dev/gpu-memory": "1GiB", "gapless.dev/gpu-booked": "5"}}})
        api.patch("/api/v1/namespaces/default/pods/stays1", {"metadata": {"annotations": {"gapless.dev/gpu-indices": "7;x"}}})
        api.create_pods([pod("late", {"gapless.dev/gpu-memory": "10GiB"})])
        until(lambda: any("Gapless" in event for event in api.events("late")), "a refusal", 60)
        extender.kill()
        extender.start()
        until(lambda: is_up(port), "the extender", 30)
        kick()
        time.sleep(3)
        check("late" not in places(api.pods()), "pods whose annotations were edited still hold what the node has booked, also after a restart")
        api.patch("/api/v1/nodes/n0", {"metadata": {"annotations": {"gapless.dev/bookings": "nonsense"}}})
        api.delete_pod("stays0")
        api.delete_pod("stays2")
        until(lambda: kick() and "late" in places(api.pods()), "a place on the node that makes sense", 60, 0.5)
        check(places(api.pods())["late"][0] == "n1", "a node whose bookings were damaged gets no pods")
        api.patch("/api/v1/nodes/n0", {"metadata": {"annotations": {"gapless.dev/bookings": None}}})
        # n0 has one free GPU. The other is stays1's: its booking is lost, and its own annotation says nonsense.
        api.create_pods([pod("next", {"gapless.dev/gpu-memory": "70GiB"})])
        until(lambda: kick() and bool(api.events("next")), "a refusal", 60, 0.5)
        time.sleep(3)
        check("next" not in places(api.pods()), "while nobody knows which GPU a pod on the node uses, the node gets none either")
        api.delete_pod("stays1")
        until(lambda: kick() and "next" in places(api.pods()), "a place on the node that was mended", 60, 0.5)
        check(places(api.pods())["next"][0] == "n0", "without that pod it gets some again")

        # An API server that answers no request, for longer than the extender waits.
        api.delete_pod("next")
        api.create_pods(pod(f"slow{number}", {"gapless.dev/gpu-memory": "20GiB"}) for number in range(4))
        cluster.server.pause(15)
        until(lambda: kick() and all(f"slow{number}" in places(api.pods()) for number in range(4)), "places after the pause", 120, 0.5)
        check(judge(api, 80, 2)[0] == 6, "after an API server that was silent for 15 s all pods are bound, and no GPU is over-booked")

        # A node that vanishes with its pods still there.
        api.call("DELETE", "/api/v1/nodes/n0")
        api.create_pods([pod("lost", {"gapless.dev/gpu-memory": "60GiB"})])
        until(lambda: has_event(api, "lost", "the largest GPU has 40.0 GiB"), "an event that names the largest GPU that is left", 60)
        api.create_nodes([gpu_node("n0", 3, 80)])
        until(lambda: kick() and "lost" in places(api.pods()), "a place on the node that came back", 60, 0.5)
        judge(api, 80, 3)
        check(places(api.pods())["lost"][0] == "n0", "a node that vanished takes nothing, and takes pods again once it is back")
        check(extender.is_running(), "the extender never ended by itself")


class Kick:
    """Changes a label of a node: the scheduler then looks at its refused pods again."""

    def __init__(self, api: Api, name: str) -> None:
        self.api, self.name, self.count, self.last = api, name, 0, 0.0

    def __call__(self) -> bool:
        if time.monotonic() > self.last + 1:
            self.last = time.monotonic()
            self.count += 1
            self.api.patch(f"/api/v1/nodes/{self.name}", {"metadata": {"labels": {"kick": str(self.count)}}})
        return True


@contextlib.contextmanager
def before_bind(extender: int, first: Callable[[], None]) -> Iterator[int]:
    """A port between the scheduler and the extender. It does something before it hands on the first bind."""
    todo = [first]

    class Between(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/bind" and todo:
                todo.pop()()
            connection = http.client.HTTPConnection("127.0.0.1", extender, timeout=60)
            connection.request("POST", self.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Between)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()


def conflicts(home: Path, programs: Path, gapless: Path) -> None:
    """Part 4."""
    print("two schedulers and replicas that want the same GPUs", flush=True)
    quiet = Quiet()
    with Cluster(home / "cluster", programs, gapless) as cluster:
        api = cluster.api
        # Half of the GPUs are alone on their node: whoever comes second there has to go to another node.
        api.create_nodes([gpu_node(f"n{number:02}", 1 if number < 20 else 4, 80) for number in range(25)])
        replicas = [cluster.extender(f"extender-{name}") for name in "ab"]
        for name, (_, port) in zip("ab", replicas, strict=True):
            cluster.scheduler(f"gapless-{name}", port)
        api.create_pods(pod(f"p{number:02}", {"gapless.dev/gpu-memory": "80GiB"}, scheduler=f"gapless-{'ab'[number % 2]}") for number in range(40))
        began = time.monotonic()
        # The test creates and deletes nothing: the waiting pods alone make the schedulers try again.
        until(lambda: judge(api, 80, 4)[0] == 40, "every pod on a GPU of its own", 200, 0.2)
        took = time.monotonic() - began
        failed = sum(int(metrics(port)["gapless_fleet_conflicts_total"]) for _, port in replicas)
        check(True, f"40 pods of two schedulers have the 40 GPUs, after {took:.1f} s and {failed} binds that failed")
        quiet.add(cluster)
    with Cluster(home / "alone", programs, gapless) as cluster:
        api = cluster.api
        api.create_nodes([gpu_node("n0", 1, 80)])
        _, port = cluster.extender("extender")

        def rival() -> None:
            """Another replica books the GPU at the last moment, for a pod that is then deleted."""
            api.create_pods([pod("rival", {"gapless.dev/gpu-memory": "80GiB"}, scheduler="nobody")])
            seen = api.get("/api/v1/namespaces/default/pods/rival")["metadata"]
            booked = json.dumps({seen["uid"]: f"default/rival GPU-n0-0 {80 * GIB} {seen['resourceVersion']}"})
            api.patch("/api/v1/nodes/n0", {"metadata": {"annotations": {"gapless.dev/bookings": booked}}})

        with before_bind(port, rival) as between:
            cluster.scheduler("gapless", between)
            api.create_pods([pod("mine", {"gapless.dev/gpu-memory": "80GiB"})])
            until(lambda: has_event(api, "mine", "came first") or has_event(api, "mine", "Gapless"), "a bind that fails", 60)
            api.delete_pod("rival")
            began = time.monotonic()
            # Nothing else happens in this cluster that would make the scheduler try again.
            until(lambda: judge(api, 80, 1)[0] == 1, "the pod on the GPU", 200, 0.2)
        took = time.monotonic() - began
        check(True, f"a pod whose bind failed is bound {took:.1f} s after the GPU is free")
        quiet.add(cluster)
        quiet.check(took < 30, "before the scheduler would have tried again by itself, which takes it a minute")


def chaos(home: Path, programs: Path, gapless: Path, kills: int, seed: int) -> None:
    """Part 5."""
    nodes, gpus, gib = 40, 4, 80
    chance = random.Random(seed)
    print(f"two schedulers and replicas, {kills} kills, {nodes * gpus} GPUs", flush=True)
    with Cluster(home / "cluster", programs, gapless) as cluster:
        api = cluster.api
        api.create_nodes(gpu_node(f"n{number:02}", gpus, gib) for number in range(nodes))
        replicas = [cluster.extender(f"extender-{name}") for name in "ab"]
        for name, (_, port) in zip("ab", replicas, strict=True):
            cluster.scheduler(f"gapless-{name}", port)
        kick = Kick(api, "n00")
        made = 0
        there: dict[str, Object] = {}
        killed = 0
        while killed < kills:
            # Pods come and go; at times they want more than there is.
            new = []
            for _ in range(chance.randint(5, 25)):
                size = chance.choice([5, 10, 18, 20, 40, 70, 80])
                notes = {"gapless.dev/gpu-memory": f"{size}GiB", "gapless.dev/gpus": chance.choice(["1", "1", "1", "2"])}
                new.append(pod(f"p{made:05}", notes, scheduler=f"gapless-{chance.choice('ab')}"))
                made += 1
            api.create_pods(new)
            there |= {one["metadata"]["name"]: one for one in new}
            if len(there) > 350:
                for name in chance.sample(sorted(there), chance.randint(20, 80)):
                    api.delete_pod(name)
                    del there[name]
            time.sleep(chance.random() * 0.3)
            daemon, _ = chance.choice(replicas)
            daemon.kill()
            killed += 1
            time.sleep(chance.random() * 0.1)
            daemon.start()
            kick()
            if killed % 10 == 0:
                print(f"  {killed} kills, {made} pods made, {judge(api, gib, gpus)[0]} bound", flush=True)
        for _, port in replicas:
            until(partial(is_up, port), "the replicas", 60)

        def calm() -> bool:
            kick()
            before = judge(api, gib, gpus)[0]
            time.sleep(12)
            kick()
            return judge(api, gib, gpus)[0] == before

        until(calm, "a calm cluster", 180)
        bound, pods = judge(api, gib, gpus)
        check(killed == kills, f"after {kills} kills no GPU is over-booked; {made} pods made, {bound} of {len(there)} bound")
        check({one["metadata"]["name"] for one in pods} == set(there), "no pod is lost")
        free: dict[tuple[str, int], int] = {(f"n{number:02}", gpu): gib * GIB for number in range(nodes) for gpu in range(gpus)}
        for one in pods:
            notes = one["metadata"]["annotations"]
            for gpu in notes.get("gapless.dev/gpu-indices", "").split(";") if one["spec"].get("nodeName") else []:
                free[one["spec"]["nodeName"], int(gpu)] -= int(notes["gapless.dev/gpu-booked"])
        waiting = [one for one in pods if "nodeName" not in one["spec"]]
        for one in waiting:
            notes = one["metadata"]["annotations"]
            size, count = int(notes["gapless.dev/gpu-memory"].removesuffix("GiB")) * GIB, int(notes["gapless.dev/gpus"])
            fits = [f"n{number:02}" for number in range(nodes) if sum(free[f"n{number:02}", gpu] >= size for gpu in range(gpus)) >= count]
            if fits:
                sys.exit(f"FAILED: {one['metadata']['name']} waits, and fits on {fits[:3]}: {api.events(one['metadata']['name'])[-1:]}")
        check(True, f"each of the {len(waiting)} pods that wait fits nowhere")
        stale = 0
        names = {one["metadata"]["uid"]: one for one in pods}
        for one in api.all("/api/v1/nodes"):
            written = json.loads(one["metadata"]["annotations"].get("gapless.dev/bookings") or "{}")
            for uid in filter(None, written):
                stale += names.get(uid, {"spec": {}})["spec"].get("nodeName") != one["metadata"]["name"]
            missing = [uid for uid, other in names.items() if other["spec"].get("nodeName") == one["metadata"]["name"] and uid not in written]
            if missing:
                sys.exit(f"FAILED: {one['metadata']['name']} lacks bookings of bound pods: {missing}")
        check(True, f"every bound pod has its booking on the node; {stale} void ones wait to be cleared")
        for daemon, port in replicas:
            if metrics(port)["gapless_fleet_over_booked_total"] > 0:
                sys.exit(f"FAILED: a replica believes that a GPU is over-booked: {daemon.log}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("home", type=Path, help="a folder for builds and clusters")
    parser.add_argument("--gapless", type=Path, required=True, help="the program that is tested")
    parser.add_argument("--programs", type=Path, help="a folder with kube-apiserver, kube-scheduler and etcd [default: built in home]")
    parser.add_argument("--parts", default="speed,overflow,oddities,conflicts,chaos")
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--every", type=int, default=6, help="the overflowing cluster has every n-th node")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    # A test that is told to end still ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    home, gapless = asked.home.resolve(), asked.gapless.resolve()
    programs = asked.programs.resolve() if asked.programs else build(home / "build")
    version = subprocess.run([str(programs / "kube-scheduler"), "--version"], capture_output=True, text=True).stdout.strip()
    print(f"Kubernetes from Debian's source package ({version})", flush=True)
    for part in asked.parts.split(","):
        began = time.monotonic()
        place = home / part
        if part == "speed":
            speed(place, programs, gapless, asked.pods)
        elif part == "overflow":
            overflow(place, programs, gapless, asked.every)
        elif part == "oddities":
            oddities(place, programs, gapless)
        elif part == "conflicts":
            conflicts(place, programs, gapless)
        elif part == "chaos":
            chaos(place, programs, gapless, asked.kills, asked.seed)
        else:
            sys.exit(f"no part is called {part!r}: there are speed, overflow, oddities, conflicts and chaos")
        print(f"  {part}: {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(PASSED)} passed, 0 failed")


if __name__ == "__main__":
    main()
