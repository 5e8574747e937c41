"""Makes a recording without stacks and without steps: random_trace.py EVENTS OUT

Sizes and lifetimes are random, so that no event is like another and nothing repeats. Blocks are placed as PyTorch's
allocator places large ones: the best fit, split if more than 1 MiB stays, joined with free neighbours when freed.
"""

import bisect
import heapq
import os
import pickle
import random
import sys

MIB = 1 << 20
BASE = 0x7F00_0000_0000


class Heap:
    """Free blocks by size and address; blocks know their neighbours within their segment."""

    def __init__(self):
        self.free = []
        self.blocks = {}
        self.segments = {}
        self.end = BASE

    def place(self, size, event):
        rounded = -(-size // 512) * 512
        at = bisect.bisect_left(self.free, (rounded, 0))
        if at == len(self.free):
            length = 20 * MIB if rounded < 10 * MIB else -(-rounded // (2 * MIB)) * 2 * MIB
            event("segment_alloc", self.end, length)
            self.segments[self.end] = length
            self.blocks[self.end] = [length, None, None, 0]
            bisect.insort(self.free, (length, self.end))
            self.end += length + 2 * MIB
            at = bisect.bisect_left(self.free, (rounded, 0))
        length, address = self.free.pop(at)
        block = self.blocks[address]
        if length - rounded > MIB:
            rest = address + rounded
            self.blocks[rest] = [length - rounded, address, block[2], 0]
            if block[2] is not None:
                self.blocks[block[2]][1] = rest
            block[0], block[2] = rounded, rest
            bisect.insort(self.free, (length - rounded, rest))
        block[3] = size
        event("alloc", address, size)
        return address

    def release(self, address, event):
        block = self.blocks[address]
        event("free_requested", address, block[3])
        event("free_completed", address, block[3])
        block[3] = 0
        before, after = block[1], block[2]
        if after is not None and not self.blocks[after][3]:
            self.join(address, after)
        if before is not None and not self.blocks[before][3]:
            self.free.pop(bisect.bisect_left(self.free, (self.blocks[before][0], before)))
            self.join(before, address, False)
            address = before
        bisect.insort(self.free, (self.blocks[address][0], address))

    def join(self, left, right, is_free=True):
        length, _, after, _ = self.blocks.pop(right)
        if is_free:
            self.free.pop(bisect.bisect_left(self.free, (length, right)))
        self.blocks[left][0] += length
        self.blocks[left][2] = after
        if after is not None:
            self.blocks[after][1] = left

    def snapshot(self):
        for start, length in self.segments.items():
            blocks, at = [], start
            while at is not None:
                size, _, after, requested = self.blocks[at]
                state = "active_allocated" if requested else "inactive"
                blocks.append({"address": at, "size": size, "requested_size": requested, "state": state, "frames": []})
                at = after
            used = sum(b["size"] for b in blocks if b["requested_size"])
            yield {
                "device": 0, "address": start, "total_size": length, "allocated_size": used, "active_size": used,
                "requested_size": sum(b["requested_size"] for b in blocks), "stream": 0, "segment_type": "large",
                "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks,
            }  # fmt: skip


def main():
    wanted, out = int(sys.argv[1]), sys.argv[2]
    if os.path.exists(out):
        return
    chance, heap, events, ends = random.Random(14), Heap(), [], []
    clock = 1_794_700_711_857_257

    def event(action, address, size):
        nonlocal clock
        clock += chance.randrange(1, 2000)
        events.append({
            "action": action, "addr": address, "size": size, "stream": 0, "time_us": clock, "compile_context": "N/A",
            "user_metadata": "",
        })  # fmt: skip

    number = 0
    while len(events) < wanted:
        while ends and ends[0][0] <= number:
            heap.release(heapq.heappop(ends)[1], event)
        address = heap.place(MIB + 1 + int(chance.expovariate(1 / (6 * MIB))), event)
        heapq.heappush(ends, (number + 1 + int(chance.expovariate(1 / 400)), address))
        number += 1
    snapshot = {
        "segments": list(heap.snapshot()),
        "device_traces": [events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }
    with open(out + ".part", "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    os.replace(out + ".part", out)


main()
