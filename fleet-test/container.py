"""A real kubelet and containerd on this machine, whose containers print what they got.

1. A pod that asks for GPU memory: the extender books it, and its container has the GPU and the bytes that were booked
   in its environment. First by the policy object of deploy/inject, then by the webhook.
2. A pod with claims (Dynamic Resource Allocation): the stock scheduler takes bytes of a GPU, the driver in the agent
   prepares the claim, and the container has the same.

The programs are named by `--programs`: kube-apiserver, kube-scheduler, kubelet (1.36 or later), containerd,
containerd-shim-runc-v2, ctr (2.0 or later), runc, etcd and a static busybox. They are built from their source trees:

    go build -o PROGRAMS ./cmd/kube-apiserver ./cmd/kube-scheduler ./cmd/kubelet                  in Kubernetes
    go build -tags no_btrfs -o PROGRAMS ./cmd/containerd ./cmd/containerd-shim-runc-v2 ./cmd/ctr  in containerd

This needs root. The GPUs are those of the stand-in for the driver's library (`--standin`).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import kubernetes_cluster
import yaml
from kubernetes_cluster import DEPLOY, Cluster, Daemon, Object, free_port, until

GIB = 1 << 30
IMAGE = "example.local/busybox:1"
NODE = "n1"
PASSED: list[str] = []


def check(holds: bool, what: str) -> None:
    """One thing that must hold."""
    if not holds:
        sys.exit(f"FAILED: {what}")
    PASSED.append(what)
    print(f"  ok: {what}", flush=True)


def image(busybox: Path, target: Path) -> None:
    """An image with one program, as an archive that containerd imports."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("bin", "tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        entry = tarfile.TarInfo("bin/busybox")
        entry.size, entry.mode = busybox.stat().st_size, 0o755
        with busybox.open("rb") as file:
            tar.addfile(entry, file)
        for name in ("sh", "env", "sleep"):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin", "NVIDIA_VISIBLE_DEVICES=all"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest()
    manifest = json.dumps([{"Config": f"{name}.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(target, "w") as tar:
        for path, content in ((f"{name}.json", config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


class Node:
    """A containerd and a kubelet, with all of their files below one folder."""

    def __init__(self, cluster: Cluster, programs: Path) -> None:
        self.cluster, self.programs = cluster, programs
        # Paths of sockets are limited to 107 bytes.
        self.home = Path(tempfile.mkdtemp(prefix="gapless-node-"))
        self.socket = self.home / "c.sock"
        self.logs, self.kubelet_home, self.devices = self.home / "logs", self.home / "kubelet", self.home / "cdi"
        for folder in (self.logs, self.kubelet_home, self.devices):
            folder.mkdir()
        config = self.home / "containerd.toml"
        config.write_text(
            f"""version = 3
root = "{self.home}/root"
state = "{self.home}/state"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
address = "{self.socket}"
[ttrpc]
address = "{self.home}/t.sock"
[plugins."io.containerd.cri.v1.images"]
snapshotter = "native"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
restrict_oom_score_adj = true
cdi_spec_dirs = ["{self.devices}"]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{programs}/runc"
"""
        )
        os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
        self.containerd = cluster.daemon("containerd", [str(programs / "containerd"), "--config", str(config)])
        until(self.answers, "containerd", 60)
        archive = self.home / "image.tar"
        image(programs / "busybox", archive)
        self.ctr("images", "import", "--local", "--snapshotter", "native", str(archive))
        self.kubelet = self.start_kubelet()

    def ctr(self, *words: str) -> str:
        whole = [str(self.programs / "ctr"), "--address", str(self.socket), "--namespace", "k8s.io", *words]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr}")
        return done.stdout

    def answers(self) -> bool:
        try:
            self.ctr("version")
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
        return True

    def start_kubelet(self) -> Daemon:
        kubeconfig = self.home / "kubeconfig.json"
        kubeconfig.write_text(json.dumps(self.cluster.kubeconfig()))
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "failCgroupV1": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(self.logs),
            "port": free_port(),
            "healthzPort": 0,
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "resolvConf": "",
        }
        path = self.home / "kubelet.json"
        path.write_text(json.dumps(config))
        words = [str(self.programs / "kubelet"), f"--config={path}", f"--kubeconfig={kubeconfig}", f"--hostname-override={NODE}"]
        words += [f"--root-dir={self.kubelet_home}", f"--cert-dir={self.home}/pki", "--node-ip=127.0.0.1", "--v=2"]
        return self.cluster.daemon("kubelet", words)

    def printed(self, pod: Object) -> dict[str, str]:
        """The environment that the pod's container printed."""
        metadata = pod["metadata"]
        folder = self.logs / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"
        found = {}
        for log in sorted(folder.glob("*/*.log")):
            for line in log.read_text().splitlines():
                name, _, value = line.split(" ", 3)[3].partition("=")
                found[name] = value
        return found

    def close(self) -> None:
        self.kubelet.kill(signal.SIGTERM)
        for line in self.ctr("tasks", "ls", "-q").split():
            subprocess.run([str(self.programs / "ctr"), "--address", str(self.socket), "-n", "k8s.io", "tasks", "kill", "-s", "9", line], capture_output=True)
        time.sleep(1)
        self.containerd.kill(signal.SIGTERM)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if str(self.home) in line:
                subprocess.run(["umount", "-l", line.split()[1]], capture_output=True)
        shutil.rmtree(self.home, ignore_errors=True)


def pod(name: str, annotations: dict[str, str], scheduler: str, **more: object) -> Object:
    """A pod that prints its environment and ends."""
    own = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "MINE", "value": "kept"}]
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/env"], "env": own}
    container |= {name: more.pop(name) for name in ("resources", "env") if name in more}
    spec = {
        "schedulerName": scheduler,
        "hostNetwork": True,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        **more,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec}


def ended(cluster: Cluster, name: str) -> Object:
    """The pod once its containers have ended."""
    path = f"/api/v1/namespaces/default/pods/{name}"

    def is_over() -> bool:
        status = cluster.api.get(path)["status"]
        if status.get("phase") == "Failed":
            sys.exit(f"FAILED: {name}: {json.dumps(status)}")
        return bool(status.get("phase") == "Succeeded")

    try:
        until(is_over, f"the end of {name}", 180)
    except SystemExit:
        print(f"{name}: {cluster.api.get(path)['status']}\n{cluster.api.events(name)}", file=sys.stderr)
        raise
    found: Object = cluster.api.get(path)
    return found


def documents(path: Path) -> list[Object]:
    """The objects of a manifest."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def refused(call: Callable[[], object]) -> str:
    try:
        call()
    except kubernetes_cluster.Refused as why:
        return str(why)
    sys.exit("FAILED: nothing was refused")


def injected(cluster: Cluster, node: Node, how: str) -> None:
    """A pod whose variables come from the binding's annotations."""
    name = f"memory-{how}"
    asks = {"gapless.dev/gpu-memory": "18GiB"}
    first = {"name": "before", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/env"]}
    cluster.api.create_pods([pod(name, asks, "gapless", initContainers=[first])])
    done = ended(cluster, name)
    notes, env = done["metadata"]["annotations"], node.printed(done)
    gpus = env.get("NVIDIA_VISIBLE_DEVICES", "")
    check(gpus == notes["gapless.dev/gpu-uuids"] and gpus.startswith("GPU-"), f"{how}: the container sees the GPU that was booked, and not all: {gpus}")
    wanted = f"pod-{done['metadata']['uid']}:{18 * GIB}"
    check(env.get("GAPLESS_TENANT") == wanted, f"{how}: it is a tenant with the bytes that were booked: {wanted}")
    check(env.get("MINE") == "kept", f"{how}: other variables are as before")
    for container in done["spec"]["containers"] + done["spec"]["initContainers"]:
        names = [one["name"] for one in container["env"]]
        check({"GAPLESS_TENANT", "NVIDIA_VISIBLE_DEVICES"} <= set(names), f"{how}: {container['name']} has both variables")
    counted = f"counted-{how}"
    resources = {"limits": {"gapless.dev/gpu-mib": "1024"}}
    cluster.api.create_pods([pod(counted, {"gapless.dev/gpu-memory": "1GiB"}, "gapless", resources=resources)])
    env = node.printed(ended(cluster, counted))
    check(env.get("GAPLESS_TENANT", "").endswith(f":{GIB}"), f"{how}: a pod that also requests what Kueue counts runs on a node that has none of it")
    other = f"other-{how}"
    cluster.api.create_pods([pod(other, {}, "gapless")])
    env = node.printed(ended(cluster, other))
    check("GAPLESS_TENANT" not in env and env["NVIDIA_VISIBLE_DEVICES"] == "all", f"{how}: a pod that asks for no GPU memory stays as it is")


def webhook(cluster: Cluster, gapless: Path) -> None:
    """Serves the webhook, and tells the API server of it."""
    home, port = cluster.home, free_port()
    key, certificate = home / "admit.key", home / "admit.crt"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate), "-days", "2"]
    words += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run(words, check=True, capture_output=True)
    cluster.daemon("admit", [str(gapless), "fleet", "admit", "--listen", f"127.0.0.1:{port}", "--tls-cert", str(certificate), "--tls-key", str(key)])
    [configuration] = documents(DEPLOY.parent / "webhook" / "webhook.yaml")
    bundle = base64.b64encode(certificate.read_bytes()).decode()
    configuration["webhooks"][0]["clientConfig"] = {"url": f"https://127.0.0.1:{port}/admit", "caBundle": bundle}
    cluster.api.call("POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", configuration)
    lies = pod("lies", {"gapless.dev/tenant": "other:80GiB"}, "gapless")

    def is_asked() -> bool:
        try:
            cluster.api.create_pods([lies])
        except kubernetes_cluster.Refused as why:
            return "only Gapless writes" in str(why)
        cluster.api.delete_pod("lies")
        return False

    until(is_asked, "the webhook", 60, 0.5)
    check(True, "webhook: a pod that says by itself what it got is refused")
    wrong = refused(lambda: cluster.api.create_pods([pod("wrong", {"gapless.dev/gpu-memory": "lots"}, "gapless")]))
    check("lots" in wrong, f"webhook: an invalid size is refused when the pod is created: {wrong[:150]}")


def claims(cluster: Cluster, node: Node, gapless: Path, standin: Path) -> None:
    """Pods whose claims the driver prepares."""
    api = cluster.api
    registry = node.kubelet_home / "plugins_registry"
    server = ["--api", f"https://127.0.0.1:{cluster.port}", "--ca", str(cluster.certificate), "--token-file", str(cluster.token_file)]
    words = [str(gapless), "fleet", "agent", "--node", NODE, "--interval", "1", "--listen", "127.0.0.1:0", *server]
    words += ["--dra", "--cdi-dir", str(node.devices), "--dra-plugin", str(registry)]
    agent = cluster.daemon("agent", ["env", f"LD_LIBRARY_PATH={standin}", f"GAPLESS_RUN_DIR={node.home}/run", *words])
    [made] = documents(DEPLOY.parent / "dra" / "class.yaml")
    api.call("POST", "/apis/resource.k8s.io/v1/deviceclasses", made)
    until(lambda: '"registered"' in agent.log.read_text(), "the kubelet's registration of the driver", 60)
    check('"ok":true' in agent.log.read_text(), "claims: the kubelet has registered the driver")
    until(lambda: bool(api.all("/apis/resource.k8s.io/v1/resourceslices")), "the slices", 60)
    [one] = api.all("/apis/resource.k8s.io/v1/resourceslices")
    [device] = one["spec"]["devices"]
    check(device.get("allowMultipleAllocations") is True, "claims: the API server keeps the members that make GPUs shareable")
    cluster.scheduler("default-scheduler", None)
    asked = {"first": "1Gi", "second": "2Gi"}
    for name, size in asked.items():
        ask(cluster, name, size)
    for name, size in asked.items():
        env = node.printed(ended(cluster, name))
        claim = api.get(f"{CLAIMS}/{name}")
        wanted = f"claim-{claim['metadata']['uid']}:{int(size[0]) * GIB}"
        check(env.get("GAPLESS_TENANT") == wanted, f"claims: {name} is a tenant with the bytes of its claim: {wanted}")
        gpus = env.get("NVIDIA_VISIBLE_DEVICES", "")
        check(gpus.lower() == device["name"], f"claims: it sees the GPU of its claim: {gpus}")
    for name in asked:
        api.delete_pod(name)
    until(lambda: not list(node.devices.glob("gapless.dev-claim_*")), "the end of the claims' devices", 60)
    check(True, "claims: devices of pods that are gone are removed")
    # An agent that starts again is registered again, and prepares claims as before. The card has a little more than
    # 4 GiB, and no controller frees the claims here.
    agent.kill()
    agent.start()
    ask(cluster, "third", "1Gi")
    env = node.printed(ended(cluster, "third"))
    check(env.get("GAPLESS_TENANT", "").endswith(f":{GIB}"), f"claims: after a restart of the agent too: {env.get('GAPLESS_TENANT')}")
    ask(cluster, "fourth", "1Gi")
    until(lambda: any("cannot allocate all claims" in event for event in api.events("fourth")), "a refusal", 60)
    check("nodeName" not in api.get("/api/v1/namespaces/default/pods/fourth")["spec"], "claims: what the card no longer has is not given")


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


def ask(cluster: Cluster, name: str, size: str) -> None:
    """A claim for this much of a GPU, and a pod that uses it."""
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.gapless.dev", "capacity": {"requests": {"memory": size}}}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
    cluster.api.call("POST", CLAIMS, claim)
    refers = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "resources": {"claims": [{"name": "gpu"}]}}
    cluster.api.create_pods([pod(name, {}, "default-scheduler", env=[{"name": "MINE", "value": "kept"}], **refers)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--gapless", type=Path, required=True, help="built with --features tls")
    parser.add_argument("--standin", type=Path, required=True, help="the folder with the stand-in's libnvidia-ml.so.1")
    args = parser.parse_args()
    shutil.rmtree(args.home, ignore_errors=True)
    args.home.mkdir(parents=True)
    programs, gapless = args.programs.resolve(), args.gapless.resolve()
    with Cluster(args.home / "cluster", programs, gapless, is_new=True) as cluster:
        api = cluster.api
        node = Node(cluster, programs)
        try:
            until(lambda: any(one["metadata"]["name"] == NODE for one in api.all("/api/v1/nodes")), "the node", 60)
            uuids = ",".join(f"GPU-{at}" for at in range(2))
            notes = {"gapless.dev/gpus": "2", "gapless.dev/gpu-memory": "80GiB", "gapless.dev/gpu-uuids": uuids}
            api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"annotations": notes}})
            _, port = cluster.extender("extender")
            cluster.scheduler("gapless", port)
            policies = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolic"
            for one in documents(DEPLOY.parent / "inject" / "policy.yaml"):
                suffix = "ies" if one["kind"] == "MutatingAdmissionPolicy" else "ybindings"
                api.call("POST", policies + suffix, one)
            time.sleep(5)
            injected(cluster, node, "policy")
            api.call("DELETE", f"{policies}ybindings/gapless-inject")
            webhook(cluster, gapless)
            injected(cluster, node, "webhook")
            claims(cluster, node, gapless, args.standin.resolve())
        finally:
            node.close()
    print(f"{len(PASSED)} things hold", flush=True)


main()
