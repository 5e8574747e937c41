"""Processes that end in every way with work in flight: os._exit, exceptions in a capture, threads inside the
allocator, finalizers and exit handlers that allocate, signals, with a region asleep or moving, an elastic tensor that
moves (on Gapless). Each ends with its own code, soon, and says nothing of a crash."""
import signal
import subprocess
import sys

from common import *

HEAD = """
import atexit, gc, signal, sys, threading
from common import *
import faulthandler
faulthandler.cancel_dump_traceback_later()
g = start(limit=1 * GIB)
x = fill(ints(40 * MIB), 3)
side = torch.cuda.Stream()
"""
WAYS = {
    "os._exit with work in flight": ("busy(300); y = x + 1; os._exit(7)", 7),
    "sys.exit with work in flight": ("busy(100); y = x + 1; del x; sys.exit(7)", 7),
    "sys.exit in a capture": ("graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    y = x + 1\n    sys.exit(7)", 7),
    "os._exit in a capture": ("graph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    y = x + 1\n    os._exit(7)", 7),
    "an exception in a pool": ("pool = torch.cuda.MemPool()\nwith torch.cuda.use_mem_pool(pool):\n    y = x + 1\n    raise KeyError", 1),
    "exit handlers that allocate": (
        "def late():\n    y = fill(ints(3 * MIB), 5); assert int(wrong(y, 5)) in (0, y.numel(), y.numel() - 1) and int(wrong(x, 3)) >= 0\n"
        "    g and g.stats(); torch.cuda.empty_cache()\natexit.register(late); sys.exit(7)", 7),
    "finalizers at the very end": (
        "class Late:\n    def __init__(self):\n        self.me, self.t = self, ints(MIB)\n    def __del__(self):\n        try:\n            torch.cuda.empty_cache()\n        except Exception:\n            pass\n"
        "kept = [Late() for _ in range(20)]\ngraph = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(graph):\n    y = x + 1\nimport builtins; builtins.kept = (kept, graph, y); sys.exit(7)", 7),
    "SIGTERM while it frees": ("signal.setitimer(signal.ITIMER_REAL, 0.3); signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))\n"
        "while True:\n    t = ints(8 * MIB); del t; torch.cuda.empty_cache()", -15),
    "SIGINT while it allocates": ("signal.setitimer(signal.ITIMER_REAL, 0.3); signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))\n"
        "kept = []\nwhile True:\n    kept.append(ints(8 * MIB)); kept[:] = kept[-9:]", -2),
    "a thread inside at os._exit": ("def run():\n    while True:\n        ints(30 * MIB); torch.cuda.empty_cache()\n[threading.Thread(target=run, daemon=True).start() for _ in range(3)]\ntime.sleep(0.2); os._exit(7)", 7),
}  # fmt: skip
if not NATIVE:
    WAYS.update({
        "a region asleep": ("with g.region('w'):\n    w = fill(ints(20 * MIB), 5)\ng.sleep('w'); sys.exit(7)", 7),
        "a region asleep, os._exit": ("with g.region('w', keep='disk'):\n    w = fill(ints(20 * MIB), 5)\ng.sleep('w'); os._exit(7)", 7),
        "a region that moves": ("with g.region('w'):\n    w = fill(ints(400 * MIB), 5)\ndef run():\n    while True:\n        g.sleep('w', guard=False); g.wake('w')\n"
            "threading.Thread(target=run, daemon=True).start(); time.sleep(0.4); os._exit(7)", 7),
        "an elastic tensor that moves": ("cache = g.elastic((4096, 65536), torch.int32)\nfor _ in range(20):\n    cache.grow(500); cache.shrink(490)\nsys.exit(7)", 7),
        "a budget and its thread": ("g.budget('512MiB', tag='a').__enter__(); y = ints(MIB); busy(50); sys.exit(7)", 7),
    })  # fmt: skip
here, problems, slowest = os.path.dirname(os.path.abspath(__file__)), [], 0.0
running, left = [], list(WAYS.items())
WORDS = ("panicked", "Segmentation", "core dumped", "Fatal Python error", "terminate called", "double free", "corrupt", "illegal memory access")


def finish(name, child, wanted, began):
    global slowest
    try:
        out, err = child.communicate(timeout=max(1, began + 40 - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.communicate()
        problems.append(f"{name}: it does not end")
        return
    slowest = max(slowest, time.monotonic() - began)
    # Python ends a process by SIGINT with that signal; some builds with 130 or 1.
    fine = child.returncode == wanted or (wanted == -2 and child.returncode in (1, 130))
    said = [word for word in WORDS if word in err]
    if not fine or said:
        problems.append(f"{name}: rc {child.returncode} {said} {(err.strip().splitlines() or [''])[-1][:100]}")


while left or running:
    while left and len(running) < 6:
        name, (body, wanted) = left.pop(0)
        child = subprocess.Popen([sys.executable, "-c", HEAD + body], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append((name, child, wanted, time.monotonic()))
    finish(*running.pop(0))
done(not problems, "; ".join(problems[:4]) or f"{len(WAYS)} ways to end, the slowest after {slowest:.1f} s")
