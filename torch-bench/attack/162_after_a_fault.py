"""After a kernel has failed (an assertion on the card, an address that is not there) CUDA answers nothing but that
error. A program that catches it, logs, frees what it has, asks for statistics and ends does so soon, with its own
code, and every error on the way is a Python exception: in threads, with streams, graphs, a region asleep."""
import signal
import subprocess
import sys

from common import *

HEAD = """
import sys, threading, gc
from common import *
import faulthandler
faulthandler.cancel_dump_traceback_later()
g = start(limit=1 * GIB)
side = torch.cuda.Stream()
kept = [fill(ints(s), 3) for s in (700, 3 * MIB, 40 * MIB)]
with torch.cuda.stream(side):
    other = fill(ints(20 * MIB), 4)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = kept[1] + 1
torch.cuda.synchronize()
def fault(how):
    table = torch.zeros(10, device="cuda")
    if how == "assert":
        at = torch.full((64,), 1 << 20, device="cuda")
        table[at]
    else:
        nowhere = torch._C._construct_storage_from_data_pointer(1 << 46, torch.device("cuda:0"), 1 << 20)
        torch.empty(0, device="cuda").set_(nowhere, 0, (1 << 18,), (1,)).fill_(1)
    torch.cuda.synchronize()
def tried(work):
    try:
        work()
        return "fine"
    except Exception as error:
        assert isinstance(error, RuntimeError), type(error)
        return type(error).__name__
try:
    fault(HOW)
    print("no fault")
    os._exit(77)
except RuntimeError as error:
    pass
"""
WAYS = {
    "ends at once": "sys.exit(7)",
    "frees and ends": "del kept, other, y, graph; gc.collect(); sys.exit(7)",
    "empties the cache": "kept.clear(); print(tried(torch.cuda.empty_cache)); print(tried(torch.cuda.empty_cache)); sys.exit(7)",
    "asks": "print(tried(torch.cuda.memory_stats), tried(torch.cuda.memory_snapshot), tried(torch.cuda.memory_summary), tried(torch.cuda.reset_peak_memory_stats)); sys.exit(7)",
    "allocates": "print([tried(lambda: ints(s)) for s in (512, 3 * MIB, 40 * MIB, 300 * MIB, 4 * GIB)]); sys.exit(7)",
    "replays and captures": "print(tried(graph.replay)); del graph\ndef cap():\n    g2 = torch.cuda.CUDAGraph()\n    with torch.cuda.graph(g2):\n        z = kept[1] + 1\nprint(tried(cap)); sys.exit(7)",
    "from threads": "ts = [threading.Thread(target=lambda: [tried(lambda: ints(9 * MIB)) for _ in range(50)] + [tried(torch.cuda.empty_cache)]) for _ in range(4)]\n[t.start() for t in ts]; [t.join() for t in ts]; sys.exit(7)",
    "an exception that nobody catches": "torch.cuda.synchronize()",
    "shares": "print(tried(lambda: kept[1].untyped_storage()._share_cuda_())); sys.exit(7)",
}  # fmt: skip
if not NATIVE:
    WAYS.update({
        "sleeps": "print(tried(lambda: g.sleep('w'))); sys.exit(7)",
        "wakes": "print(tried(lambda: g.wake('v'))); sys.exit(7)",
        "trims": "kept.clear(); print(tried(g.trim)); print(tried(g.stats)); sys.exit(7)",
        "grows": "print(tried(lambda: cache.grow(900)), tried(lambda: cache.shrink(1))); sys.exit(7)",
    })  # fmt: skip
EXTRA = {
    "sleeps": "with g.region('w'):\n    w = ints(8 * MIB)\n",
    "wakes": "with g.region('v'):\n    w = ints(8 * MIB)\ng.sleep('v')\n",
    "grows": "cache = g.elastic((4096, 65536), torch.int32)\ncache.grow(500)\n",
}
WORDS = ("panicked", "Segmentation", "core dumped", "Fatal Python error", "terminate called", "double free", "corrupt")
here, problems, slowest, skipped = os.path.dirname(os.path.abspath(__file__)), [], 0.0, 0
running, left = [], [(name, ("assert", "address")[n % 2]) for n, name in enumerate(WAYS)]


def finish(name, how, child, began):
    global slowest, skipped
    try:
        out, err = child.communicate(timeout=max(1, began + 45 - time.monotonic()))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.communicate()
        problems.append(f"{name}, {how}: it does not end")
        return
    if child.returncode == 77:
        skipped += 1
        return
    slowest = max(slowest, time.monotonic() - began)
    wanted = 1 if "nobody" in name else 7
    said = [word for word in WORDS if word in err]
    if child.returncode != wanted or said:
        problems.append(f"{name}, {how}: rc {child.returncode} {said} {(err.strip().splitlines() or [''])[-1][:100]}")


while left or running:
    while left and len(running) < 8:
        name, how = left.pop(0)
        code = HEAD.replace("HOW", repr(how)).replace("def fault(how):", EXTRA.get(name, "") + "def fault(how):") + WAYS[name]
        child = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        running.append((name, how, child, time.monotonic()))
    finish(*running.pop(0))
if skipped == len(WAYS):
    skip("no kernel runs here")
done(not problems, f"{len(problems)}: " + "; ".join(problems[:4]) if problems else f"{len(WAYS) - skipped} ends after a fault, the slowest after {slowest:.1f} s")
