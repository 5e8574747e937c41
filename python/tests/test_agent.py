"""`gapless fleet agent` with an API server: its writes about the node and its pods, and the slices that it publishes.

The API server is a small one of the test. The GPU is that of the stand-in for the driver's library.
"""

import http.server
import json
import os
import subprocess
import threading
import time

import pytest

GIB = 1 << 30
POD = "0c1d2e3f-0000-4000-8000-00000000000a"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Server:
    """Objects by their paths. `broken` answers everything with an error."""

    def __init__(self, has_dra=True):
        self.objects, self.writes, self.broken, self.has_dra = {}, 0, False, has_dra
        self.objects["/api/v1/nodes/n1"] = {"metadata": {"name": "n1", "uid": "node-uid", "annotations": {}}}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, value = outer.answer(self.command, self.path.split("?")[0], json.loads(body or b"null"))
                text = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, method, path, body):
        if self.broken:
            return 503, {"message": "away"}
        if path.startswith(SLICES) and not self.has_dra:
            return 404, {"message": "not found"}
        if method == "GET" and path in (SLICES, "/api/v1/pods"):
            return 200, {"items": [one for name, one in self.objects.items() if name.startswith(path + "/")]}
        if method == "GET":
            return (200, self.objects[path]) if path in self.objects else (404, {"message": "not found"})
        self.writes += 1
        if method == "PATCH":
            annotations = self.objects[path]["metadata"]["annotations"]
            for name, value in body["metadata"]["annotations"].items():
                annotations.pop(name, None)
                if value is not None:
                    annotations[name] = value
            return 200, self.objects[path]
        if method == "DELETE":
            return 200, self.objects.pop(path)
        place = f"{SLICES}/{body['metadata']['name']}"
        self.objects[place] = body
        return 201, body

    def add_pod(self, annotations):
        metadata = {"uid": POD, "namespace": "default", "name": "p", "annotations": annotations}
        self.objects["/api/v1/pods/p"] = {"metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}

    @property
    def node(self):
        return self.objects["/api/v1/nodes/n1"]["metadata"]["annotations"]


@pytest.fixture
def start(real, command, tmp_path):
    """Starts an agent that looks all the time; it ends with the test."""
    started = []

    def run(server, *words):
        variables = {"LD_LIBRARY_PATH": str(real.standin), "GAPLESS_RUN_DIR": str(tmp_path / "run")}
        options = ["--node", "n1", "--api", server.address, "--interval", "0.1", "--listen", "127.0.0.1:0", *words]
        log = tmp_path / f"log{len(started)}"
        with log.open("w") as file:
            started.append(subprocess.Popen([command, "fleet", "agent", *options], env={**os.environ, **variables}, stderr=file, stdin=subprocess.DEVNULL))
        return started[-1], log

    yield run
    for process in started:
        process.kill()
        process.wait()


def until(holds, process, log):
    end = time.monotonic() + 60
    while not holds():
        assert process.poll() is None and time.monotonic() < end, said(log)
        time.sleep(0.02)


def said(log):
    return log.read_text()


def test_a_node_is_described_and_its_bookings_count(start, tmp_path):
    server = Server()
    server.node["gapless.dev/bookings"] = json.dumps({POD: f"default/p 0 {GIB} 1"})
    # The owner of the pod has edited its annotation to get more.
    server.add_pod({"gapless.dev/gpu-uuids": "0", "gapless.dev/gpu-booked": str(3 * GIB)})
    file = tmp_path / "cdi" / f"gapless.dev-pod_{POD}.json"
    process, log = start(server, "--cdi-dir", str(tmp_path / "cdi"), "--dra")
    until(lambda: file.exists() and any(name.startswith(SLICES) for name in server.objects), process, log)
    assert server.node["gapless.dev/gpus"] == "1"
    assert f"GAPLESS_TENANT=pod-{POD}:{GIB}" in json.loads(file.read_text())["devices"][0]["containerEdits"]["env"]
    [published] = [one for name, one in server.objects.items() if name.startswith(SLICES)]
    assert published["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    [device] = published["spec"]["devices"]
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["memory"]["value"].endswith("Mi")
    # The agent writes nothing again while nothing changes, and prints each message once.
    until(lambda: "its annotations were edited" in said(log), process, log)
    writes = server.writes
    looked = time.monotonic() + 1
    until(lambda: time.monotonic() > looked, process, log)
    assert server.writes == writes
    assert said(log).count("its annotations were edited") == 1


def test_a_cluster_without_dra_is_told_once_and_pods_keep_their_limits(start, tmp_path):
    server = Server(has_dra=False)
    server.node["gapless.dev/bookings"] = json.dumps({POD: f"default/p 0 {GIB} 1"})
    server.add_pod({"gapless.dev/gpu-indices": "0", "gapless.dev/gpu-booked": str(GIB)})
    process, log = start(server, "--cdi-dir", str(tmp_path / "cdi"), "--dra")
    until(lambda: (tmp_path / "cdi" / f"gapless.dev-pod_{POD}.json").exists(), process, log)
    assert said(log).count("Kubernetes 1.34 or later") == 1


def test_an_api_server_that_is_away_ends_no_agent(start, tmp_path):
    server = Server()
    server.broken = True
    process, log = start(server, "--cdi-dir", str(tmp_path / "cdi"))
    until(lambda: "away" in said(log), process, log)
    server.broken = False
    until(lambda: server.node.get("gapless.dev/gpus") == "1", process, log)
