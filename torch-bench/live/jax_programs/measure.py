"""One program on the card: what its allocator held.

    python measure.py NAME FOLDER [sample]
"""

import json
import os
import runpy
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
name, folder = sys.argv[1:3]
sample = sys.argv[3:] == ["sample"]
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
started = time.monotonic()
import jax  # noqa: E402

real, calls = jax.jit, []


def stats():
    found = jax.local_devices()[0].memory_stats() or {}
    return {key: found.get(key) for key in ("bytes_in_use", "peak_bytes_in_use", "largest_alloc_size", "num_allocs", "bytes_limit", "pool_bytes", "peak_pool_bytes")}


class Jit:
    """Notes the allocator's figures around each call, and the compiled program's own sizes at its first."""

    def __init__(self, function, jitted):
        self.function, self.jitted, self.sizes = function, jitted, None

    def __call__(self, *args, **kwargs):
        if not jax._src.core.trace_state_clean():
            return self.jitted(*args, **kwargs)
        before = stats()
        out = self.jitted(*args, **kwargs)
        jax.block_until_ready(out)
        calls.append({"name": getattr(self.function, "__name__", "?"), "before": before, "after": stats()})
        return out

    def __getattr__(self, name):
        return getattr(self.jitted, name)


def jit(function=None, /, **options):
    if function is None:
        return lambda function: jit(function, **options)
    return Jit(function, real(function, **options))


jax.jit = jit
sys.argv = [os.path.join(HERE, "programs.py"), *(["--sample"] if sample else []), name]
error = None
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Exception as problem:
    error = f"{type(problem).__name__}: {str(problem)[:2000]}"
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, f"{name}.measured.json"), "w") as file:
    json.dump({"name": name, "jax": jax.__version__, "seconds": time.monotonic() - started, "error": error, "end": stats(), "calls": calls}, file)
print(name, error or "", stats()["peak_bytes_in_use"], f"{time.monotonic() - started:.1f} s", flush=True)
