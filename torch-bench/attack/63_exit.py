"""Tensors, graphs, pools and streams that are still there when the interpreter ends, in atexit and in finalizers, end
with code 0."""
import subprocess
import sys

WAYS = {
    "globals": "KEEP = [ints(k * MIB) for k in range(1, 20)]\nmodule = torch.nn.Linear(64, 64).cuda()",
    "atexit": (
        "import atexit\nx = fill(ints(8 * MIB), 3)\n"
        "def last():\n    global x\n    y = x + 1\n    del x\n"
        "    torch.cuda.synchronize()\n    torch.cuda.empty_cache()\n"
        "    print('last', y.numel())\n"
        "atexit.register(last)"
    ),
    "finalizer": (
        "class Late:\n    def __init__(self):\n        self.data = ints(4 * MIB)\n"
        "    def __del__(self):\n        self.data = None\n        print('last')\n"
        "sys.modules['late'] = late = Late()\nlate.me = late"
    ),
    "graph": (
        "graph = torch.cuda.CUDAGraph()\nx = torch.zeros(1 << 20, device='cuda')\nx + 1\n"
        "with torch.cuda.graph(graph):\n    y = x + 1\n"
        "pool = torch.cuda.MemPool()\nwith torch.cuda.use_mem_pool(pool):\n    z = ints(4 * MIB)\n"
        "graph.replay()\nbusy(50)\nz.record_stream(torch.cuda.Stream())\ndel z"
    ),
    "threads": (
        "import threading\nkeep = []\n"
        "def work():\n    with torch.cuda.stream(torch.cuda.Stream()):\n        for k in range(300):\n"
        "            keep.append(fill(ints(64 * KIB), k))\n            keep[:-9] = []\n"
        "for _ in range(4):\n    threading.Thread(target=work).start()"
    ),
    "error": "x = ints(8 * MIB)\ntry:\n    ints(9 * GIB)\n"
    "except torch.OutOfMemoryError as error:\n    kept = error\nsys.exit(0)",
}
if len(sys.argv) > 1:
    from common import *

    start(limit=1 * GIB)
    exec(compile(WAYS[sys.argv[1]], sys.argv[1], "exec"), globals())
    print("end of", sys.argv[1])
else:
    from common import *

    problems = []
    children = {
        way: subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), way], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for way in WAYS
    }
    for way, child in children.items():
        try:
            out, _ = child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
            problems.append(f"{way}: hangs")
            continue
        if child.returncode != 0:
            problems.append(f"{way}: ended with {child.returncode}: {out.strip().splitlines()[-1:]}")
        elif "Traceback" in out or "Exception ignored" in out or (way in ("atexit", "finalizer") and "last" not in out):
            problems.append(f"{way}: said {out.strip().splitlines()[-1:]}")
    done(not problems, "; ".join(problems)[:400] or f"{len(WAYS)} ways to end, all with 0")
