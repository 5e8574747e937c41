"""Runs of many ranks as snapshot files, planted and clean ones, made by other rules than those of `rank_cases`.

    python3 xtask/bench/odd_ranks.py FOLDER SEED COUNT
    rank_cases folders FOLDER

Each run is made from a recorded snapshot in `testdata/`. A rank is the list of its requests with other sizes and other
times, and what only that rank does. Three ways of placing blocks make three sorts of files:

* `edited`: addresses stay as recorded, and requests can only become smaller. What is added has segments of its own.
* `kept`: the same, but the final state in the file is that of the recording, without what was added.
* `placed`: an allocator of a few lines places every block again.

Each run is a folder. `case.json` in it says which rank is odd and why.
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
import pickle
import random
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20

# Name, and how many ranks a run of it has: large recordings have few, because Python is slow.
BASES = [
    ("traces/gpt2_train_stacks", (4, 6, 8, 12)),
    ("traces/gpt2_train", (4, 6, 8)),
    ("traces/resnet_varbatch", (4, 5, 6)),
    ("traces/multistream", (4, 6, 8)),
    ("traces/mixtral_moe_expandable", (4, 6)),
    ("traces/llama_offload", (4,)),
    ("cases/exp_empty", (4, 6, 8)),
    ("cases/split_round", (4, 6, 8)),
    ("cases/cpppickle", (4, 8, 16)),
    ("cases/infer_cnn", (4, 8, 12)),
    ("cases/gc_cap", (4, 6, 8)),
]
FAULTS = ["leak", "larger-batch", "extra-buffer", "settings", "out-of-memory", "straggler"]


class Base:
    """A recorded run: its requests with their ends, and its steps."""

    def __init__(self, name: str) -> None:
        with gzip.open(ROOT / "testdata" / f"{name}.pickle.gz") as file:
            self.snapshot = pickle.load(file)
        self.name = name
        self.events = self.snapshot["device_traces"][0]
        self.ends: dict[int, int] = {}
        open_at: dict[int, int] = {}
        live = self.peak = 0
        for at, event in enumerate(self.events):
            if event["action"] == "alloc":
                open_at[event["addr"]] = at
                live += event["size"]
                self.peak = max(self.peak, live)
            elif event["action"] == "free_requested" and event["addr"] in open_at:
                self.ends[open_at.pop(event["addr"])] = at
                live -= event["size"]
        annotations = self.snapshot.get("external_annotations") or []
        times = [event["time_us"] for event in self.events]
        ends = [a["time_us"] for a in annotations if a["stage"] == "END" and "Optimizer.step" in a["name"]]
        self.has_steps = len(ends) >= 3
        if self.has_steps:
            bounds = [0] + [bisect.bisect_right(times, time) for time in ends]
        else:
            bounds = [len(times) * i // 4 for i in range(5)]
        self.bounds = bounds
        self.steps = len(bounds) - 1

    def step_of(self, at: int) -> int:
        return min(max(bisect.bisect_right(self.bounds, at) - 1, 0), self.steps - 1)


class Heap:
    """Best fit over segments, as simple as it can be."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.next = 0x7F0000000000

    def take(self, size: int) -> tuple[int, tuple[int, int] | None]:
        """An address, and a new segment."""
        at = bisect.bisect_left(self.free, (size, 0))
        segment = None
        if at == len(self.free):
            length = -(-max(size, 2 * MIB if size < MIB else 20 * MIB) // (2 * MIB)) * 2 * MIB
            segment = (self.next, length)
            bisect.insort(self.free, (length, self.next))
            self.next += length + 64 * MIB
            at = bisect.bisect_left(self.free, (size, 0))
        length, address = self.free.pop(at)
        if length - size >= 512:
            bisect.insort(self.free, (length - size, address + size))
        return address, segment

    def give(self, address: int, size: int) -> None:
        bisect.insort(self.free, (size, address))


class Noise:
    """What differs between ranks that do the same."""

    def __init__(self, dice: random.Random, base: Base, sizes: float) -> None:
        self.sizes = sizes
        self.each = dice.choice([0.0, 0.0, 0.005])
        self.times = dice.choice([0.003, 0.01, 0.02])
        self.small = dice.choice([0, 0, 40])
        self.workspace = dice.choice([0, 8 * MIB + 131072, 32 * MIB]) if base.peak > 400 * MIB else 0
        self.warm = dice.choice([0, 3])
        self.slots = dice.choice([1, 1, 8])


class Rank:
    """The snapshot of one rank."""

    def __init__(self, base: Base, rank: int, dice: random.Random, noise: Noise, way: str, fault: dict | None) -> None:
        self.base, self.rank, self.dice, self.noise, self.way = base, rank, dice, noise, way
        self.fault = fault or {"why": None}
        self.out: list[dict] = []
        self.added: dict[int, tuple[int, int]] = {}
        self.heap = Heap()
        self.fresh = 0x600000000000
        self.segments: list[tuple[int, int]] = []
        self.live: dict[int, tuple[int, int]] = {}
        self.clock()
        self.plan()

    def clock(self) -> None:
        """New times for all events."""
        base, dice, fault = self.base, self.dice, self.fault
        pace = 1 + dice.gauss(0, self.noise.times)
        slow = [1.0] * base.steps
        if fault["why"] == "straggler" and not fault["waits"]:
            slow = [fault["factor"]] * base.steps
        steps = [pace * (1 + dice.gauss(0, self.noise.times)) * slow[i] for i in range(base.steps)]
        steps[0] *= dice.uniform(0.8, 1.3)  # the first step compiles, opens files and warms caches
        now = 1_794_700_000_000_000 + dice.randrange(2_000_000)
        before = base.events[0]["time_us"]
        typical = (base.events[-1]["time_us"] - before) / base.steps
        self.times, self.marks, last = [], [(before, now)], -1
        for at, event in enumerate(base.events):
            step = base.step_of(at)
            now += int((event["time_us"] - before) * steps[step])
            if fault["why"] == "straggler" and fault["waits"] and step != last:
                now += int(typical * (fault["factor"] - 1))
            last, before = step, event["time_us"]
            self.times.append(now)
            self.marks.append((before, now))

    def moved(self, time: int) -> int:
        at = max(bisect.bisect_right(self.marks, (time, 1 << 62)) - 1, 0)
        (before, now), (after, then) = self.marks[at], self.marks[min(at + 1, len(self.marks) - 1)]
        share = (time - before) / max(after - before, 1)
        return now + int(max(share, 0) * (then - now))

    def plan(self) -> None:
        """What this rank adds, by the event before which it stands: `(bytes, index of the event of its end)`."""
        base, dice, noise, fault = self.base, self.dice, self.noise, self.fault
        inside = lambda step, low=0.3, high=0.7: int(  # noqa: E731
            base.bounds[step] + (base.bounds[step + 1] - base.bounds[step]) * dice.uniform(low, high)
        )
        plans: list[tuple[int, int, int | None, bool]] = []
        if noise.workspace:
            plans.append((inside(0), noise.workspace, None, False))
        for _ in range(dice.randint(0, noise.warm)):
            at = inside(0, 0.05, 0.2)
            plans.append((at, int(base.peak * dice.uniform(0.001, 0.02)), at + dice.randint(1, 20), False))
        for _ in range(dice.randint(0, noise.small)):
            at = dice.randrange(len(base.events) - 40)
            plans.append((at, 512 * dice.randint(1, 64), at + dice.randint(1, 30), False))
        if self.rank == 0:
            for step in range(base.steps):
                at = inside(step)
                plans.append((at, MIB, at + 10, False))
        if fault["why"] == "leak" and not fault["unfreed"]:
            for step in range(fault["from"], base.steps):
                for _ in range(fault["pieces"]):
                    plans.append((inside(step), fault["bytes"] // fault["pieces"], None, True))
        if fault["why"] == "extra-buffer":
            if fault["scratch"]:
                for step in range(base.steps):
                    plans.append((inside(step, 0.05, 0.1), fault["bytes"], inside(step, 0.85, 0.95), True))
            else:
                at = 5 if fault["step"] is None else inside(fault["step"])
                plans.append((at, fault["bytes"], len(base.events) - 5 if fault["freed"] else None, True))
        self.plans: dict[int, list[tuple[int, int | None, bool]]] = {}
        for at, size, end, planted in plans:
            self.plans.setdefault(at, []).append((size, end, planted))
        factors = [1 + dice.gauss(0, noise.sizes) for _ in range(base.steps)]
        if self.way != "placed":  # a block that grew would lie over the next one
            factors = [1 - abs(1 - factor) for factor in factors]
        if fault["why"] == "larger-batch":
            for step in range(base.steps):
                if fault["step"] in (None, step):
                    factors[step] *= fault["factor"]
        self.factors = [max(factor, 0.5) for factor in factors]
        self.unfreed: set[int] = set()
        if fault["why"] == "leak" and fault["unfreed"]:
            # A free that does not come: of a request of about the wanted size in every step.
            for step in range(fault["from"], base.steps):
                inside_step = [at for at, end in base.ends.items() if base.step_of(at) == step == base.step_of(end) and base.events[at]["size"] >= 4096]
                if inside_step:
                    near = min(inside_step, key=lambda at: abs(base.events[at]["size"] - fault["bytes"]))
                    self.unfreed.add(near)
        self.stop = len(base.events)
        if fault["why"] == "out-of-memory":
            self.stop = int(len(base.events) * fault["at"])

    def size(self, at: int, event: dict) -> int:
        end, size = self.base.ends.get(at), event["size"]
        step = self.base.step_of(at)
        if end is None or size < 4096 or self.base.step_of(end) != step:
            return size
        each = 1 + self.dice.uniform(-self.noise.each, self.noise.each if self.way == "placed" else 0)
        return max(int(size * self.factors[step] * each) // 512 * 512, 512)

    def put(self, at: int, action: str, address: int, size: int, like: dict, frames: list | None = None) -> None:
        event = dict(like)
        event.update(action=action, addr=address, size=size, time_us=self.times[min(at, len(self.times) - 1)])
        if frames is not None and "frames" in like:
            event["frames"] = frames
        self.out.append(event)

    def snapshot(self) -> dict:
        base, fault = self.base, self.fault
        placed = self.way == "placed"
        sizes: dict[int, tuple[int, int]] = {}
        pending: dict[int, tuple[int, int]] = {}
        opened: dict[int, int] = {}
        closing: dict[int, list[tuple[int, int]]] = {}
        planted = [{"name": "remember", "filename": "/app/extra.py", "line": 12}]
        stream = base.events[0].get("stream", 0)
        for at, event in enumerate(base.events[: self.stop]):
            for address, size in closing.pop(at, []):
                self.put(at, "free_requested", address, size, event, [])
                self.put(at, "free_completed", address, size, event, [])
                self.added.pop(address, None)
                if placed:
                    self.heap.give(address, size)
            for size, end, own in self.plans.get(at, []):
                size = -(-size // 512) * 512
                like = dict(event, stream=stream)
                if placed:
                    address, segment = self.heap.take(size)
                else:
                    length = -(-size // (2 * MIB)) * 2 * MIB
                    address, segment = self.fresh, (self.fresh, length)
                    self.fresh += length + 2 * MIB
                if segment:
                    self.put(at, "segment_alloc", segment[0], segment[1], like, [])
                    self.segments.append(segment)
                self.put(at, "alloc", address, size, like, planted if own else [])
                self.added[address] = (size, at)
                if end is not None:
                    closing.setdefault(max(end, at + 1), []).append((address, size))
            action, address = event["action"], event["addr"]
            if action == "alloc":
                size = self.size(at, event)
                opened[address] = at
                if placed:
                    spot, segment = self.heap.take(-(-size // 512) * 512)
                    if segment:
                        self.put(at, "segment_alloc", segment[0], segment[1], event, [])
                        self.segments.append(segment)
                else:
                    spot = address
                sizes[at] = (spot, size)
                self.put(at, "alloc", spot, size, event)
            elif action in ("free_requested", "free_completed", "free"):
                start = opened.get(address)
                if start is None:
                    if not placed:
                        self.out.append(dict(event, time_us=self.times[at]))
                    continue
                if start in self.unfreed:
                    continue
                spot, size = pending[start] if start in pending else sizes.pop(start)
                pending[start] = (spot, size)
                self.put(at, action, spot, size, event)
                if action == "free_completed":
                    pending.pop(start)
                    opened.pop(address, None)
                    if placed:
                        self.heap.give(spot, -(-size // 512) * 512)
            elif not placed:
                self.out.append(dict(event, time_us=self.times[at]))
        if fault["why"] == "out-of-memory":
            last = base.events[self.stop - 1]
            for spot, size in pending.values():
                self.put(self.stop - 1, "free_completed", spot, size, last, [])
            self.put(self.stop - 1, "oom", fault["free"], fault["asked"], last, [])
        for size, at in sizes.values():
            self.live[size] = (at, 0)
        return self.whole()

    def whole(self) -> dict:
        base, fault = self.base, self.fault
        settings = dict(base.snapshot.get("allocator_settings") or {})
        if fault["why"] == "settings":
            settings["PYTORCH_CUDA_ALLOC_CONF"] = f"{fault['key']}:{fault['text']}"
            settings[fault["field"]] = fault["value"]
        annotations = [dict(a, time_us=self.moved(a["time_us"])) for a in base.snapshot.get("external_annotations", [])]
        if self.noise.slots == 8:  # a machine with eight cards: the rank's own is its local one
            slot = self.rank % 8
            annotations = [dict(a, device=slot) for a in annotations]
        else:
            slot = 0
        if self.stop < len(base.events):
            end = self.times[self.stop - 1]
            annotations = [a for a in annotations if a["time_us"] <= end]
        traces: list[list] = [[] for _ in range(self.noise.slots)]
        traces[slot] = self.out
        return {
            "segments": [dict(s, device=slot) for s in self.final()],
            "device_traces": traces,
            "allocator_settings": settings,
            "external_annotations": annotations,
        }

    def final(self) -> list[dict]:
        """The segments at the end."""
        if self.way == "kept":
            return self.base.snapshot["segments"]
        blocks = {address: size for address, (size, _) in self.added.items()}
        kept: list[dict] = []
        if self.way == "placed":
            blocks.update({spot: -(-size // 512) * 512 for spot, (size, _) in self.live.items()})
        else:
            kept = list(self.base.snapshot["segments"])
        starts = sorted(blocks)
        for address, length in self.segments:
            inside = starts[bisect.bisect_left(starts, address) : bisect.bisect_left(starts, address + length)]
            rows, at = [], address
            for start in inside:
                if start > at:
                    rows.append({"address": at, "size": start - at, "requested_size": 0, "state": "inactive", "frames": []})
                size = blocks[start]
                row = {"address": start, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}
                rows.append(row)
                at = start + size
            if at < address + length:
                rest = address + length - at
                rows.append({"address": at, "size": rest, "requested_size": 0, "state": "inactive", "frames": []})
            used = sum(blocks[start] for start in inside)
            kept.append({
                "device": 0, "address": address, "total_size": length, "allocated_size": used, "active_size": used,
                "requested_size": used, "stream": self.base.events[0].get("stream", 0), "segment_type": "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "blocks": rows,
            })  # fmt: skip
        return kept


def make_fault(dice: random.Random, base: Base, why: str, sizes: float) -> dict:
    peak = base.peak
    fault: dict = {"why": why}
    if why == "leak":
        start = dice.randint(0, max(base.steps - 4, 0))
        fault["from"] = start
        total = peak * dice.uniform(0.04, 0.25)
        fault["bytes"] = max(int(total / (base.steps - start)), 2 * MIB)
        fault["pieces"] = dice.choice([1, 1, 4])
        fault["unfreed"] = dice.random() < 0.25
    elif why == "larger-batch":
        low = 1.35 if sizes <= 0.02 else 1.6
        fault["step"] = dice.choice([None, dice.randrange(base.steps)])
        fault["factor"] = dice.uniform(low, low + 0.7)
    elif why == "extra-buffer":
        fault["scratch"] = dice.random() < 0.25
        fault["bytes"] = max(int(peak * dice.uniform(0.15 if fault["scratch"] else 0.03, 0.3)), 24 * MIB)
        fault["step"] = dice.choice([None, dice.randrange(base.steps)])
        # One that is freed in the end is there for a whole step at least.
        fault["freed"] = dice.random() < 0.2 and (fault["step"] or 0) < base.steps - 2
    elif why == "settings":
        expandable = bool((base.snapshot.get("allocator_settings") or {}).get("expandable_segments"))
        rows = [
            ("max_split_size_mb", "128", "max_split_size", 128 * MIB),
            ("garbage_collection_threshold", "0.7", "garbage_collection_threshold", 0.7),
            ("expandable_segments", str(not expandable), "expandable_segments", not expandable),
        ]
        fault["key"], fault["text"], fault["field"], fault["value"] = dice.choice(rows)
    elif why == "out-of-memory":
        fault["at"] = dice.uniform(0.3, 0.95)
        fault["asked"], fault["free"] = int(peak * dice.uniform(0.05, 0.3)), 3 * MIB
    elif why == "straggler":
        fault["factor"] = dice.uniform(1.3, 2.0)
        fault["waits"] = dice.random() < 0.4 and base.has_steps  # it waits in every step, so steps must be known
    return fault


def make_case(seed: int, number: int, planted: bool, opened: dict[str, Base]) -> tuple[str, list[Rank], dict | None, int]:
    dice = random.Random(f"{seed}/{number}/{planted}")
    name, counts = dice.choice(BASES)
    base = opened.setdefault(name, None) or Base(name)
    opened[name] = base
    way = dice.choice(["kept", "edited", "placed", "placed"])
    sizes = dice.choice([0.0, 0.003, 0.01, 0.02, 0.04])
    noise = Noise(dice, base, sizes)
    count = dice.choice(counts)
    fault, odd = None, -1
    if planted:
        fault = make_fault(dice, base, FAULTS[number % len(FAULTS)], sizes)
        odd = dice.randrange(count)
        if fault["why"] in ("larger-batch", "out-of-memory") or fault.get("unfreed"):
            way = "placed"  # the recorded places and the recorded end are not those of this rank
    ranks = [Rank(base, r, random.Random(f"{seed}/{number}/{planted}/{r}"), noise, way, fault if r == odd else None) for r in range(count)]
    about = f"{name} {count} ranks, {way}, sizes {sizes}, each {noise.each}, times {noise.times}, slots {noise.slots}"
    return about, ranks, fault, odd


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    options = parser.parse_args()
    opened: dict[str, Base] = {}
    for number in range(options.count):
        for planted in (True, False):
            about, ranks, fault, odd = make_case(options.seed, number, planted, opened)
            folder = options.folder / f"{options.seed}_{number:03}_{'planted' if planted else 'clean'}"
            folder.mkdir(parents=True)
            for rank in ranks:
                with open(folder / f"rank{rank.rank}.pickle", "wb") as file:
                    pickle.dump(rank.snapshot(), file, protocol=4)
            wanted = {"rank": odd, "why": fault["why"]} if fault else None
            text = json.dumps({"about": about, "odd": wanted, "fault": fault})
            (folder / "case.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
