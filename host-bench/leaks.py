"""Programs that leak, and programs that do not: one a run. A line that leaks has its program's name in a comment."""

import collections
import ctypes
import functools
import gc
import io
import sys
import threading
from typing import Any, Callable

import numpy as np

try:
    step: Callable[[], Any] = ctypes.CDLL(None).gapless_host_step
except AttributeError:

    def step() -> None:
        pass


def work(round: int) -> float:
    """What a step does besides: arrays that come and go, texts, numbers."""
    total = 0.0
    for part in range(4):
        array = np.arange(20_000 + 997 * part + round % 7, dtype=np.float64)
        total += float((array * 1.5).sum())
        words = [f"{round}-{part}-{i}" for i in range(300)]
        total += len(" ".join(words))
    return total


ROUNDS = 150
kept: list[Any] = []
table: dict[Any, Any] = {}


# ---- leaks ----


def arrays() -> None:
    for i in range(ROUNDS):
        work(i)
        kept.append(np.zeros(2000))  # LEAK arrays


def texts() -> None:
    for i in range(ROUNDS):
        step()
        work(i)
        table[i] = "line " * 1500 + str(i)  # LEAK texts


def small() -> None:
    for i in range(ROUNDS):
        step()
        work(i)
        for j in range(60):
            kept.append((i * 1.5, [j], str(i * j)))  # LEAK small


def closures() -> None:
    def register(data: bytes) -> None:
        kept.append(lambda: data)

    for i in range(ROUNDS):
        work(i)
        register(bytes(7000))  # LEAK closures


def cycles() -> None:
    gc.disable()

    class Node:
        def __init__(self) -> None:
            self.payload = bytearray(3000)  # LEAK cycles
            self.self = self

    for i in range(ROUNDS):
        work(i)
        for _ in range(3):
            Node()


def threads() -> None:
    def serve(i: int) -> None:
        work(i)
        kept.append(bytearray(9000))  # LEAK threads

    for i in range(ROUNDS):
        step()
        thread = threading.Thread(target=serve, args=(i,))
        thread.start()
        thread.join()


def buffer() -> None:
    log = io.BytesIO()
    kept.append(log)
    for i in range(ROUNDS * 4):
        work(i)
        log.write(b"0123456789abcdef" * 1024)  # LEAK buffer


def views() -> None:
    for i in range(ROUNDS):
        step()
        work(i)
        image = np.ones(60_000)  # LEAK views
        kept.append(image[:8])


def memo() -> None:
    @functools.lru_cache(maxsize=None)
    def embed(key: int) -> Any:
        return np.full(1200, float(key))  # LEAK memo

    for i in range(ROUNDS):
        work(i)
        embed(i)
        embed(i // 2)


def errors() -> None:
    def parse(i: int) -> None:
        rows = np.zeros(3000)  # LEAK errors
        raise ValueError(f"row {i} of {len(rows)}")

    for i in range(ROUNDS):
        step()
        work(i)
        try:
            parse(i)
        except ValueError as error:
            kept.append(error)


# ---- none of these leaks ----


def churn() -> None:
    for i in range(ROUNDS):
        step()
        work(i)


def fills() -> None:
    """A cache that is full after a third of the run."""
    for i in range(ROUNDS):
        work(i)
        key = i % (ROUNDS // 3)
        if key not in table:
            table[key] = np.zeros(4000)


def bounded() -> None:
    @functools.lru_cache(maxsize=20)
    def embed(key: int) -> Any:
        return np.full(6000, float(key))

    for i in range(ROUNDS):
        step()
        work(i)
        embed(i)


def ring() -> None:
    recent: collections.deque[Any] = collections.deque(maxlen=30)
    for i in range(ROUNDS):
        work(i)
        recent.append(bytearray(20_000))


def pool() -> None:
    free = [bytearray(50_000) for _ in range(16)]
    for i in range(ROUNDS):
        step()
        work(i)
        taken = [free.pop() for _ in range(8)]
        taken[0][:4] = b"used"
        free.extend(taken)


def warm() -> None:
    for i in range(ROUNDS):
        work(i)
        if i < ROUNDS // 10:
            kept.append(np.zeros(20_000))


def collected() -> None:
    """Cycles that the collector frees."""

    class Node:
        def __init__(self) -> None:
            self.payload = bytearray(4000)
            self.self = self

    for i in range(ROUNDS):
        step()
        work(i)
        Node()
        if i % 10 == 9:
            gc.collect()


def sawtooth() -> None:
    """Collects ten steps, then begins again."""
    rows: list[Any] = []
    for i in range(ROUNDS):
        work(i)
        rows.append(np.zeros(5000))
        if len(rows) == 10:
            rows.clear()


def replaces() -> None:
    """State that each step replaces, as an optimizer does."""
    state = {name: np.zeros(30_000) for name in "abcd"}
    for i in range(ROUNDS):
        step()
        work(i)
        state = {name: array + 1 for name, array in state.items()}


def batches() -> None:
    images = [np.zeros((64, 64, 3), dtype=np.uint8) for _ in range(32)]
    for i in range(ROUNDS):
        work(i)
        batch = np.stack(images).astype(np.float32)
        batch *= 1 / 255


if __name__ == "__main__":
    globals()[sys.argv[1]]()
