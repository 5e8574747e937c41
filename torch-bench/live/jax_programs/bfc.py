"""Random programs of allocations on the card, with the allocator's figures after each step.

    python bfc.py FOLDER SEED STEPS preallocate|grow SHARE

Arrays are made by `device_put` of host arrays, which asks for exactly their bytes, and freed by `delete`. Each row of
the file is `+ID BYTES` or `-ID`, then bytes_in_use, peak_bytes_in_use, largest_free_block_bytes, pool_bytes, the number
of allocations, and the array's address. Sizes are of all magnitudes; about a third are a size that was used before.
"""

import json
import os
import random
import sys
import time

folder, seed, steps, mode, share = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "true" if mode == "preallocate" else "false"
os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = share
import jax  # noqa: E402
import numpy as np  # noqa: E402

device = jax.local_devices()[0]
chance = random.Random(seed)
# One page of zeros read again and again: the host has no need of more.
source = np.zeros(48 << 20, np.uint8)
KEYS = ("bytes_in_use", "peak_bytes_in_use", "largest_free_block_bytes", "pool_bytes", "num_allocs")


def row(words, array=None):
    found = device.memory_stats() or {}
    address = array.unsafe_buffer_pointer() if array is not None else 0
    return [words, *(found.get(key) for key in KEYS), address]


rows, live, sizes = [], {}, []
limit = (device.memory_stats() or {}).get("bytes_limit")
started = time.monotonic()
for step in range(steps):
    if live and (len(live) > 400 or chance.random() < 0.48):
        name = chance.choice(list(live))
        live.pop(name).delete()
        rows.append(row(f"-{name}"))
        continue
    kind = chance.random()
    if sizes and kind < 0.35:
        size = chance.choice(sizes)
    elif kind < 0.97:
        size = int(2 ** chance.uniform(0, 23)) + chance.randrange(300)
    else:
        size = chance.randrange(1 << 23, 48 << 20)
    size = max(1, size)
    sizes.append(size)
    array = jax.device_put(source[:size], device)
    array.block_until_ready()
    live[step] = array
    rows.append(row(f"+{step} {size}", array))
    if time.monotonic() - started > 40:
        break
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, f"bfc.{mode}.{share}.{seed}.json"), "w") as file:
    json.dump({"jax": jax.__version__, "limit": limit, "stats": device.memory_stats(), "keys": KEYS, "rows": rows}, file)
print("bfc", seed, mode, share, len(rows), f"{time.monotonic() - started:.1f} s", flush=True)
