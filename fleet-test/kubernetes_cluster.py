"""A Kubernetes without kubelets on this machine: etcd, the API server, schedulers and extenders as processes.

Everything listens on 127.0.0.1 and ends with the `with` block. Nodes and pods are objects only: pods are bound, and
nothing runs them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

DEPLOY = Path(__file__).resolve().parent.parent / "deploy" / "fleet"
Object = dict[str, Any]


class Refused(Exception):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """A client of the API server: one connection for each thread."""

    def __init__(self, port: int, certificate: Path, token: str) -> None:
        self.port = port
        self.token = token
        self.context = ssl.create_default_context(cafile=str(certificate))
        self.kept = threading.local()

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        text = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        for is_last in (False, True):
            connection = getattr(self.kept, "connection", None)
            if connection is None:
                connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.context, timeout=60)
                self.kept.connection = connection
            try:
                connection.request(method, path, text, headers)
                answer = connection.getresponse()
                read = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                self.kept.connection = None
                if is_last:
                    raise
                continue
            if answer.status >= 300:
                raise Refused(answer.status, read.decode(errors="replace")[:3000])
            return json.loads(read)
        raise AssertionError("not reached")

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def patch(self, path: str, body: object) -> Any:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def all(self, path: str) -> list[Object]:
        items: list[Object] = self.get(path)["items"]
        return items

    def many(self, each: Callable[[Object], object], objects: Iterable[Object], threads: int = 4) -> None:
        """Calls `each` for every object, from some threads."""
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            for done in [pool.submit(each, one) for one in objects]:
                done.result()

    def create_nodes(self, nodes: Iterable[Object]) -> None:
        self.many(lambda node: self.call("POST", "/api/v1/nodes", node), nodes)

    def create_pods(self, pods: Iterable[Object]) -> None:
        self.many(lambda pod: self.call("POST", "/api/v1/namespaces/default/pods", pod), pods)

    def delete_pod(self, name: str) -> None:
        with contextlib.suppress(Refused):
            self.call("DELETE", f"/api/v1/namespaces/default/pods/{name}", {"gracePeriodSeconds": 0})

    def pods(self) -> list[Object]:
        return self.all("/api/v1/pods")

    def events(self, pod: str) -> list[str]:
        """What was said of a pod."""
        found = self.all(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name={pod}")
        return [event.get("message", "") for event in found]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def until(holds: Callable[[], bool], what: str, seconds: float, pause: float = 0.1) -> None:
    """Asks until it holds; gives up after `seconds`."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            sys.exit(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(pause)


class Daemon:
    """A process with its log, which can be killed and started again."""

    def __init__(self, words: list[str], log: Path) -> None:
        self.words = words
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)

    def kill(self, how: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def pause(self, seconds: float) -> None:
        """The process does nothing for some time."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def processor_seconds(self) -> float:
        """User and system time so far."""
        if self.process is None:
            return 0.0
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def metrics(port: int) -> dict[str, float]:
    """The metrics of a scheduler or an extender."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


class Cluster:
    """A cluster of its own in `home`, with the programs of `programs`; `is_new`: of Kubernetes 1.25 or later."""

    def __init__(self, home: Path, programs: Path, gapless: Path, is_new: bool = False) -> None:
        self.home, self.programs, self.gapless, self.is_new = home, programs, gapless, is_new
        self.daemons: list[Daemon] = []
        self.data: Path | None = None

    def __enter__(self) -> Cluster:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            daemon.kill(signal.SIGTERM)
        if self.data is not None:
            shutil.rmtree(self.data, ignore_errors=True)

    def daemon(self, name: str, words: list[str]) -> Daemon:
        daemon = Daemon(words, self.home / f"{name}.log")
        self.daemons.append(daemon)
        return daemon

    def start(self) -> None:
        # In memory: the test is about schedulers, not about this machine's disk.
        place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.data = Path(tempfile.mkdtemp(prefix="gapless-etcd-", dir=place))
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        urls += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        etcd = [str(self.programs / "etcd"), "--data-dir", str(self.data), "--logger", "zap", "--log-level", "error"]
        self.daemon("etcd", [*etcd, *urls, "--quota-backend-bytes", str(2 << 30)])
        self.token_file = self.home / "token"
        token = secrets.token_hex(16)
        self.token_file.write_text(token)
        (self.home / "tokens.csv").write_text(f'{token},tester,tester,"system:masters"\n')
        key = self.home / "accounts.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        self.port = free_port()
        options = {
            "etcd-servers": client,
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(self.port),
            "cert-dir": str(self.home),
            "token-auth-file": str(self.home / "tokens.csv"),
            "authorization-mode": "AlwaysAllow",
            "anonymous-auth": "false",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(key),
            "service-account-signing-key-file": str(key),
            "service-cluster-ip-range": "127.0.100.0/24",
            "endpoint-reconciler-type": "none",
            "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
        }
        server = [str(self.programs / "kube-apiserver"), *[f"--{name}={value}" for name, value in options.items()]]
        self.server = self.daemon("apiserver", server)
        self.certificate = self.home / "apiserver.crt"
        until(self.certificate.is_file, "the API server's certificate", 60)

        def is_ready() -> bool:
            if not self.server.is_running():
                sys.exit("the API server has ended:\n" + (self.home / "apiserver.log").read_text()[-2000:])
            try:
                self.api = Api(self.port, self.certificate, token)
                self.api.get("/api/v1/namespaces/default")
            except (OSError, http.client.HTTPException, Refused):
                return False
            return True

        until(is_ready, "the API server", 120)

    def extender(self, name: str) -> tuple[Daemon, int]:
        """A replica of the extender."""
        port = free_port()
        words = [str(self.gapless), "fleet", "serve", "--listen", f"127.0.0.1:{port}", "--api", f"https://127.0.0.1:{self.port}"]
        words += ["--ca", str(self.certificate), "--token-file", str(self.token_file)]
        daemon = self.daemon(name, words)
        until(lambda: is_up(port), f"the extender {name}", 60)
        return daemon, port

    def scheduler(self, name: str, extender: int | None) -> tuple[Daemon, int]:
        """A stock scheduler, with the configuration of deploy/fleet, for pods that name it."""
        kubeconfig = self.home / "kubeconfig.json"
        kubeconfig.write_text(json.dumps(self.kubeconfig()))
        config = self.home / f"{name}.yaml"
        config.write_text(scheduler_config((DEPLOY / "scheduler.yaml").read_text(), name, kubeconfig, extender, self.is_new))
        port = free_port()
        if self.is_new:
            return self.daemon(name, [str(self.programs / "kube-scheduler"), f"--config={config}", "--secure-port=0"]), 0
        words = [str(self.programs / "kube-scheduler"), f"--config={config}", "--secure-port=0"]
        # Ports of metrics come from the configuration where there is one.
        config.write_text(config.read_text() + f"metricsBindAddress: 127.0.0.1:{port}\nhealthzBindAddress: 127.0.0.1:{port}\n")
        return self.daemon(name, words), port

    def kubeconfig(self) -> Object:
        token = self.token_file.read_text()
        server = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority": str(self.certificate)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": "tester", "user": {"token": token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "tester"}}],
            "current-context": "here",
        }


def scheduler_config(deployed: str, name: str, kubeconfig: Path, extender: int | None, is_new: bool) -> str:
    """The deployed configuration: for an old scheduler in the older version of its format, without leader election, and
    without the limit on calls to the API server, which would be what is measured."""
    lines = []
    is_in = ""
    for line in deployed.splitlines():
        if not line.startswith((" ", "#")):
            is_in = line.split(":")[0]
        if is_in == "leaderElection" or (is_in == "extenders" and extender is None):
            continue
        if not is_new:
            line = line.replace("kubescheduler.config.k8s.io/v1", "kubescheduler.config.k8s.io/v1beta1")
        line = line.replace("schedulerName: gapless", f"schedulerName: {name}")
        lines.append(line.replace("127.0.0.1:8888", f"127.0.0.1:{extender}"))
    lines += ["leaderElection:", "  leaderElect: false", "clientConnection:", f"  kubeconfig: {kubeconfig}", "  qps: 10000", "  burst: 10000"]
    return "\n".join(lines) + "\n"


def is_up(port: int) -> bool:
    """Whether an extender has listed nodes and pods."""
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False


@contextlib.contextmanager
def stopped(daemon: Daemon) -> Iterator[None]:
    """Stops a daemon after the block."""
    try:
        yield
    finally:
        daemon.kill(signal.SIGTERM)
