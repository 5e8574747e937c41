"""compressed-tensors for `cargo xtask bench quantize`, on one thread.

make FILE ROWS COLUMNS          a Gaussian matrix as bf16
peer FILE ROWS COLUMNS ROUNDS   for each scheme, GB/s of bf16 input, as JSON; the best of the rounds

The layer that holds the weights is made before the clock starts: torch fills a new one with random numbers, which takes
longer than some schemes.
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

SCRIPT = Path(__file__).parents[2] / "testdata/weights/quantize.py"


def main() -> None:
    verb, path, rows, columns = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    if verb == "make":
        torch.manual_seed(1)
        weight = (torch.randn(rows, columns) * 0.02).to(torch.bfloat16)
        path.write_bytes(weight.view(torch.int16).numpy().tobytes())
        return
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("oracle", SCRIPT)
    assert spec is not None and spec.loader is not None
    oracle = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(oracle)
    bits = np.fromfile(path, dtype=np.int16).reshape(rows, columns)
    weight = torch.from_numpy(bits).view(torch.bfloat16)
    speeds = {}
    for scheme, preset in oracle.PRESETS.items():
        best = float("inf")
        for _ in range(int(sys.argv[5])):
            args = oracle.preset_name_to_scheme(preset, ["Linear"])
            module = oracle.layer(weight, args)
            start = time.perf_counter()
            oracle.compressed(module, weight, args)
            best = min(best, time.perf_counter() - start)
        speeds[scheme] = 2 * rows * columns / best / 1e9
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
