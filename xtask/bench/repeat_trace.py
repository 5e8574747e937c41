"""Makes a long recording out of a short one: repeat_trace.py TRACE EVENTS OUT

The trace's events are repeated until there are at least EVENTS, with all blocks and segments freed between two
repetitions, so that every repetition begins from nothing and the peaks stay those of the trace. Each event is a dict
of its own, as in a real recording.
"""

import gzip
import os
import pickle
import sys


def releases(events):
    """Events that free all that `events` leave behind."""
    blocks, segments = {}, {}
    for event in events:
        action, addr = event["action"], event["addr"]
        if action == "alloc":
            blocks[addr] = event
        elif action == "free_completed":
            blocks.pop(addr, None)
        elif action in ("segment_alloc", "segment_map"):
            segments[addr] = event
        elif action in ("segment_free", "segment_unmap"):
            segments.pop(addr, None)
    for block in blocks.values():
        yield {**block, "action": "free_requested"}
        yield {**block, "action": "free_completed"}
    for segment in segments.values():
        undo = "segment_free" if segment["action"] == "segment_alloc" else "segment_unmap"
        yield {**segment, "action": undo}


def main():
    trace, wanted, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if os.path.exists(out):
        return
    with gzip.open(trace) as file:
        snapshot = pickle.load(file)
    (events,) = [t for t in snapshot["device_traces"] if t]
    end = list(releases(events))
    span = events[-1]["time_us"] - events[0]["time_us"] + 1
    long, shift = [], 0
    while True:
        long += [{**event, "time_us": event["time_us"] + shift} for event in events]
        if len(long) >= wanted:
            break
        long += [{**event, "time_us": events[-1]["time_us"] + shift} for event in end]
        shift += span
    snapshot["device_traces"] = [long if t else t for t in snapshot["device_traces"]]
    with open(out + ".part", "wb") as file:
        pickle.dump(snapshot, file, protocol=4)
    os.replace(out + ".part", out)


main()
