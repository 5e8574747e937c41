"""Records the snapshots beside it: stock torch 2.13 or later over torch-bench's stand-in, no GPU needed.

    LD_PRELOAD=$L/libcuda.so.1:$L/libgapless-card.so LD_LIBRARY_PATH=$L python make.py     # L: see torch-bench/README.md

Each case runs in a process of its own. It writes `<case>_<version>.pickle.gz` and its row of `truth.json`: what
`torch.cuda.memory_stats` and `torch.cuda.host_memory_stats` said at that moment. Kernels do nothing on the stand-in, so
the tensors have no values; the allocator is torch's own. Paths of files are cut to what is the same
on every machine.
"""

import gzip
import json
import os
import pickle
import subprocess
import sys

KEYS = (
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "active_bytes.all.peak",
    "requested_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "segment.all.peak",
    "num_alloc_retries",
    "num_ooms",
)
HOST_KEYS = ("allocated_bytes.current", "allocated_bytes.peak", "active_bytes.current", "active_bytes.peak")


class Layer:
    """A weight with its Adam state and a saved activation: no kernel is needed to allocate them."""

    def __init__(self, torch, width):
        self.weight = torch.empty(width, width, device="cuda")
        self.state = None

    def forward(self, torch, x):
        self.saved = torch.empty_like(x)
        scratch = torch.empty(x.numel() // 2, device="cuda")
        del scratch
        return torch.empty_like(x)

    def backward(self, torch, grad):
        self.grad = torch.empty_like(self.weight)
        self.saved = None
        return torch.empty_like(grad)

    def step(self, torch):
        if self.state is None:
            self.state = torch.empty_like(self.weight), torch.empty_like(self.weight)
        self.grad = None


def annotate(torch, layers, what="weight"):
    note = getattr(torch.cuda.memory, "_annotate_tensor", None)
    for n, layer in enumerate(layers):
        if note:
            note(getattr(layer, what), f"model.layers.{n}.{what}")


def train(torch, layers, steps=3, batch=3000):
    metadata = torch.cuda.memory._set_memory_metadata
    for step in range(steps):
        # Since 2.14 a dict may be given, which arrives as JSON; strings always work.
        metadata(json.dumps({"step": step, "phase": "forward"}, separators=(",", ":")))
        x = torch.empty(batch + 700 * step, 512, device="cuda")
        with torch.profiler.record_function("forward"):
            for layer in layers:
                x = layer.forward(torch, x)
        metadata("backward")
        for layer in reversed(layers):
            x = layer.backward(torch, x)
        metadata("")
        with torch.profiler.record_function("Optimizer.step#Adam.step"):
            for layer in layers:
                layer.step(torch)
        del x


def case_train(torch, record):
    """Notes at allocation and after it, a private pool, pinned host memory, two streams."""
    record(**({"record_pinned_host_memory": True} if newer(torch, 14) else {}))
    layers = [Layer(torch, 1024) for _ in range(4)]
    annotate(torch, layers)
    pinned = [torch.empty(n, dtype=torch.uint8, pin_memory=True) for n in (3000, 5 << 20, 200)]
    del pinned[0]
    train(torch, layers)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.empty(900_000, device="cuda")
    x.record_stream(torch.cuda.current_stream())
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = torch.empty(7 << 20, dtype=torch.uint8, device="cuda")
    if newer(torch, 14):
        torch.cuda.memory._annotate_tensor(kept, "kv cache of the draft model")
    return layers, pinned, x, pool, kept


def case_late(torch, record):
    """The recording begins when the weights exist. They are annotated during it."""
    layers = [Layer(torch, 1024) for _ in range(4)]
    spare = torch.empty(11 << 20, dtype=torch.uint8, device="cuda")
    record()
    annotate(torch, layers)
    if newer(torch, 14):
        torch.cuda.memory._annotate_tensor(spare, "spare")
    del spare
    train(torch, layers)
    return layers


def case_ring(torch, record):
    """The ring of events is too short for the run: the beginning is lost."""
    record(max_entries=60)
    layers = [Layer(torch, 1024) for _ in range(4)]
    train(torch, layers)
    annotate(torch, layers)
    return layers


def case_address(torch, record):
    """Tensors at addresses that the program chose: allocator marks of `mallocWithAddress`."""
    record()
    torch.cuda.memory._set_memory_metadata("restore")
    x = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
    base = x.data_ptr()
    del x
    wanted = torch.empty(0, dtype=torch.uint8, device="cuda").untyped_storage()
    wanted._resize_with_addr_(3 << 20, base + (4 << 20))
    torch.cuda.memory._set_memory_metadata("")
    return wanted, torch.empty(1 << 20, dtype=torch.uint8, device="cuda")


def case_expandable(torch, record):
    """Expandable segments, emptied in between; the reserve setting where there is one."""
    record()
    layers = [Layer(torch, 1024) for _ in range(4)]
    train(torch, layers, steps=2)
    torch.cuda.empty_cache()
    annotate(torch, layers)
    train(torch, layers, steps=1, batch=5000)
    return layers


def case_host(torch, record):
    """Pinned host memory alone is recorded."""
    record(record_pinned_host_memory=True, record_cuda=False)
    layers = [Layer(torch, 256)]
    pinned = [torch.empty(n, dtype=torch.uint8, pin_memory=True) for n in (100, 6000, 3 << 20)]
    del pinned[1]
    return layers, pinned


CASES = {
    "train": (13, case_train, ""),
    "late": (13, case_late, ""),
    "ring": (13, case_ring, ""),
    "address": (13, case_address, ""),
    "expandable": (13, case_expandable, "expandable_segments:True"),
    "reserve": (15, case_expandable, "expandable_segments:True,expandable_segments_reserve:2G"),
    "host": (14, case_host, ""),
}


def newer(torch, minor):
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, minor)


def clean(value, seen):
    """Cuts the paths of this machine; shared objects stay shared."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        name = value.get("filename")
        if isinstance(name, str) and name.endswith("/make.py"):
            value["filename"] = "make.py"
        elif isinstance(name, str) and "/torch/" in name:
            value["filename"] = "site-packages/torch/" + name.split("/torch/", 1)[1]
        for below in value.values():
            clean(below, seen)
    elif isinstance(value, (list, tuple)):
        for below in value:
            clean(below, seen)


def run(name):
    import torch

    minor, case, conf = CASES[name]
    if not newer(torch, minor):
        return
    kept = case(torch, lambda **more: torch.cuda.memory._record_memory_history(stacks="python", **more))
    snapshot = torch.cuda.memory._snapshot()
    stats, host = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
    row = {key: stats[key] for key in KEYS if key in stats}
    row.update({f"host.{key}": host[key] for key in HOST_KEYS if key in host})
    row.update({key: value for key, value in stats.items() if key.startswith("reserved_bytes_by_private_pools") and key.endswith("all.peak")})
    row["conf"] = conf
    row["torch"] = torch.__version__.split("+")[0]
    clean(snapshot, set())
    version = "_".join(row["torch"].split(".")[:2])
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, f"{name}_{version}.pickle.gz"), "wb") as out:
        with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as packed:
            pickle.dump(snapshot, packed)
    truth = os.path.join(folder, "truth.json")
    rows = {}
    if os.path.exists(truth):
        with open(truth, encoding="utf-8") as file:
            rows = json.load(file)
    rows[f"{name}_{version}"] = row
    with open(truth, "w", encoding="utf-8") as file:
        json.dump(rows, file, indent=1, sort_keys=True)
        file.write("\n")
    del kept


if len(sys.argv) > 1:
    run(sys.argv[1])
else:
    for name, (_, _, conf) in CASES.items():
        settings = {**os.environ, "PYTORCH_ALLOC_CONF": conf} if conf else None
        subprocess.run([sys.executable, os.path.abspath(__file__), name], check=True, env=settings)
