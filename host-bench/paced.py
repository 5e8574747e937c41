"""Programs of a chosen length that leak much, leak little, or do not leak: `paced.py NAME SECONDS LIBRARY`.

Lines that leak have their program's name in a comment. What is kept comes evenly all through the run, whatever its
length: 3,000 objects, or 300 in a program whose name ends in `_few`. `paced.c` has the library, and programs in C.
"""

import collections
import concurrent.futures
import ctypes
import json
import queue
import random
import re
import sys
import threading
import time
from typing import Any, Callable, Iterator

SECONDS = float(sys.argv[2])
library = ctypes.CDLL(sys.argv[3])
library.keep.restype = library.take.restype = ctypes.c_void_p
library.drop.argtypes = [ctypes.c_void_p]
kept: list[Any] = []
rng = random.Random(5)


def work(round: int) -> int:
    """What a round does besides: texts that are parsed, sorted and matched."""
    rows = [{"id": i, "name": f"row {round} {i}", "tags": ["a", "b", str(i)]} for i in range(40)]
    text = json.dumps(rows)
    found = json.loads(text)
    found.sort(key=lambda row: row["name"])
    words = re.findall(r"row (\d+)", text)
    return len(words) + len(found)


def rounds() -> Iterator[tuple[int, float]]:
    """Numbers of rounds, and how much of the run is over."""
    start = time.process_time()
    round, done = 0, 0.0
    while done < 1:
        work(round)
        yield round, done
        round += 1
        done = (time.process_time() - start) / SECONDS


def due(total: int) -> Iterator[int]:
    """Numbers from 0 to `total`, evenly over the run."""
    given = 0
    for _, done in rounds():
        while given < done * total:
            yield given
            given += 1


class Handler:
    def __init__(self, number: int) -> None:
        self.number = number + 0.5  # LEAK handlers handlers_few
        self.call = self.handle  # LEAK handlers handlers_few

    def handle(self) -> float:
        return self.number


def handlers(total: int = 3000) -> None:
    for i in due(total):
        kept.append(Handler(i))  # LEAK handlers handlers_few


def handlers_few() -> None:
    handlers(300)


def waiting(total: int = 3000) -> None:
    requests: queue.Queue[Any] = queue.Queue()
    kept.append(requests)
    for i in due(total):
        requests.put({"id": i + 1000, "body": f"request {i}"})  # LEAK waiting waiting_few


def waiting_few() -> None:
    waiting(300)


def extension(total: int = 3000) -> None:
    for _ in due(total):
        library.keep(100)  # LEAK extension extension_few


def extension_few() -> None:
    extension(300)


def ended(total: int = 3000) -> None:
    """Threads that end, and leave what they made."""

    def serve(count: int) -> None:
        for i in range(count):
            kept.append(bytes(120 + i))  # LEAK ended ended_few

    for _ in due(total // 30):
        thread = threading.Thread(target=serve, args=(30,))
        thread.start()
        thread.join()


def ended_few() -> None:
    ended(300)


def suspended() -> None:
    def lines(number: int) -> Iterator[str]:  # LEAK suspended
        yield f"first {number}"  # LEAK suspended
        yield f"second {number}"

    for i in due(3000):
        iterator = lines(i)  # LEAK suspended
        kept.append((next(iterator), iterator))  # LEAK suspended


def keys() -> None:
    seen: set[Any] = set()
    kept.append(seen)
    for i in due(3000):
        seen.add((f"user-{i:09d}", i * 1.5, b"token %09d" % i))  # LEAK keys


# ---- none of these leaks ----


def lru() -> None:
    table: collections.OrderedDict[int, str] = collections.OrderedDict()
    for round, _ in rounds():
        for _ in range(5):
            table[rng.randrange(10**9)] = f"value of {round} " * 4
            if len(table) > 500:
                table.popitem(last=False)


def recent() -> None:
    history: collections.deque[str] = collections.deque(maxlen=1000)
    for round, _ in rounds():
        for i in range(8):
            history.append(f"line {i} of round {round}, with some more text behind it")


def rebuilt() -> None:
    index: dict[str, list[int]] = {}
    for round, _ in rounds():
        if round % 50 == 0:
            index = {f"{round}-{i}": [i, i + 1000] for i in range(500)}
    kept.append(index)


def executor() -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for round, _ in rounds():
            sum(pool.map(len, [f"{round} {i}" * 10 for i in range(20)]))


def cyclic() -> None:
    for _, _ in rounds():
        for _ in range(20):
            node: dict[str, Any] = {"name": "x" * 80}
            node["self"] = node


def resized() -> None:
    rows: list[Any] = []
    for round, _ in rounds():
        rows.append([round + 1000, f"row {round}"])
        if len(rows) > 300:
            rows.clear()


def extension_frees() -> None:
    held: list[Any] = []
    for _, _ in rounds():
        held.append([library.take(150) for _ in range(10)])
        if len(held) > 20:
            for block in held.pop(rng.randrange(len(held))):
                library.drop(block)


def memo() -> None:
    """A table of 2,000 keys that come by chance: it is full after the first part of the run."""
    table: dict[int, str] = {}
    for _, done in rounds():
        for _ in range(int(2000 * min(1, done * 8)) - len(table)):
            table[len(table)] = "entry " * 20
        table.get(rng.randrange(2000))


def threads_end() -> None:
    def serve(round: int) -> None:
        own = [f"{round} {i}" for i in range(200)]
        own.sort()

    for round, _ in rounds():
        if round % 5 == 0:
            thread = threading.Thread(target=serve, args=(round,))
            thread.start()
            thread.join()


if __name__ == "__main__":
    program: Callable[[], None] = globals()[sys.argv[1]]
    program()
