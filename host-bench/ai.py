"""What AI programs do with the host's memory, one program a run. Prints the seconds of CPU after the imports.

A second word: how often.
"""

import atexit
import io
import os
import pickle
import resource
import shutil
import sys
import tempfile
from typing import Callable


def cpu() -> float:
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


def collate() -> Callable[[], None]:
    """Batches of images: decode to bytes, scale to floats, stack."""
    import numpy as np

    rng = np.random.default_rng(1)
    images = [rng.integers(0, 255, (224, 224, 3), dtype=np.uint8) for _ in range(64)]

    def run() -> None:
        for _ in range(40):
            batch = np.stack(images)
            floats = batch.astype(np.float32)
            floats *= 1 / 255
            np.ascontiguousarray(floats.transpose(0, 3, 1, 2))

    return run


def tokenize() -> Callable[[], None]:
    """Batches of text: words, numbers, padded arrays."""
    import numpy as np

    words = [f"word{i % 977}" for i in range(40000)]
    text = " ".join(words)
    table = {word: at for at, word in enumerate(sorted(set(words)))}

    def run() -> None:
        for _ in range(40):
            rows = [[table[word] for word in text[start : start + 20000].split() if word in table] for start in range(0, len(text), 20000)]
            longest = max(map(len, rows))
            np.array([row + [0] * (longest - len(row)) for row in rows], dtype=np.int64)

    return run


def checkpoint() -> Callable[[], None]:
    """Weights to a pickle and back, in memory."""
    import numpy as np

    weights = {f"layer.{i}": np.ones((1024, 1024), dtype=np.float32) for i in range(24)}

    def run() -> None:
        for _ in range(8):
            file = io.BytesIO()
            pickle.dump(weights, file, protocol=5)
            pickle.loads(file.getvalue())

    return run


def safetensors() -> Callable[[], None]:
    """Weights to a safetensors file and back."""
    import numpy as np
    from safetensors.numpy import load, save

    weights = {f"layer.{i}": np.ones((1024, 1024), dtype=np.float32) for i in range(24)}

    def run() -> None:
        for _ in range(8):
            load(save(weights))

    return run


def arrow() -> Callable[[], None]:
    """Columns filtered, sorted and joined, by the C library's allocator."""
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rng = np.random.default_rng(2)
    table = pa.table({"key": rng.integers(0, 1000, 500_000), "value": rng.random(500_000)})

    def run() -> None:
        for _ in range(12):
            kept = table.filter(pc.greater(table["value"], 0.5))
            kept.sort_by("key").group_by("key").aggregate([("value", "sum")])
            pa.concat_tables([kept, kept]).combine_chunks()

    return run


def workers() -> Callable[[], None]:
    """Four forked workers that make batches and send them through pipes, as a DataLoader's do."""
    import multiprocessing

    import numpy as np

    context = multiprocessing.get_context("fork")

    def work(number: int, pipe: "multiprocessing.connection.Connection") -> None:
        rng = np.random.default_rng(number)
        for _ in range(20):
            images = [rng.integers(0, 255, (224, 224, 3), dtype=np.uint8) for _ in range(8)]
            pipe.send_bytes(pickle.dumps(np.stack(images).astype(np.float32), protocol=5))
        pipe.close()

    def run() -> None:
        pipes, children = [], []
        for number in range(4):
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=work, args=(number, theirs))
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        for _ in range(20):
            np.concatenate([pickle.loads(pipe.recv_bytes()) for pipe in pipes])
        for child in children:
            child.join()

    return run


def files() -> Callable[[], None]:
    """Shards of 48 MiB read whole and cut into samples."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    path = os.path.join(folder, "shard")
    with open(path, "wb") as file:
        file.write(os.urandom(1 << 20) * 48)

    def run() -> None:
        for _ in range(12):
            with open(path, "rb") as file:
                shard = file.read()
            [shard[at : at + 150_000] for at in range(0, len(shard), 150_000)]

    return run


PROGRAMS = {f.__name__: f for f in (collate, tokenize, checkpoint, safetensors, arrow, workers, files)}

if __name__ == "__main__":
    program = PROGRAMS[sys.argv[1]]()
    before = cpu()
    for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        program()
    spent = cpu() - before
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"figure {spent:.6f} peak_kib {peak}")
