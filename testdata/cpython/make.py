"""Snapshots as CPython pickles them, small: the pickles beside this file. Run: python3 make.py"""
import os, pickle

here = os.path.dirname(os.path.abspath(__file__))


def dump(name, value, protocol):
    with open(os.path.join(here, name), "wb") as f:
        pickle.dump(value, f, protocol=protocol)


frame = {"name": "forward", "filename": "model.py", "line": 12}
stack = [frame, {"name": "<module>", "filename": "train.py", "line": 300}]


def event(n, action, addr, size, **more):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 1700000000000000 + n,
            "compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0), **more}


base = 0x7F0000000000
events = [event(0, "segment_alloc", base, 20 << 20, frames=stack)]
for n in range(1250):
    events.append(event(n, "alloc", base + 4096 * n, 4096 - n % 7, frames=stack if n % 2 else [frame]))
for n in range(1250):
    events.append(event(n, "free_requested", base + 4096 * n, 4096 - n % 7, forward_frames=['  File "m.py", line 3, in f\n    x()\n']))
events.append(event(9, "alloc", 0xFFFF800000000000, 4096, stream=-3, pool_id=(0, 1), compile_context="Region 1"))
events.append({**event(9, "free_completed", 0xFFFF800000000000, 4096), "user_metadata": "äöü" * 100})
snapshot = {
    "segments": [{
        "device": 0, "address": base, "total_size": 20 << 20, "allocated_size": 0, "active_size": 0, "requested_size": 0,
        "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": stack,
        "blocks": [{"address": base, "size": 20 << 20, "requested_size": 0, "state": "inactive", "frames": []}]}],
    "device_traces": [events],
    "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", "max_split_size": 128 << 20,
                           "garbage_collection_threshold": 0.8, "expandable_segments": False,
                           "graph_capture_record_stream_reuse": False,
                           "roundup_power2_divisions": {str(1 << n): n for n in range(16)}},
    "external_annotations": [{"stage": "START", "name": "step", "device": 0, "time_us": 1700000000000001}],
}
for protocol in (2, 3, 4, 5):
    dump(f"protocol_{protocol}.pickle", snapshot, protocol)

old_frames = [{"name": "f", "filename": "a.py", "line": 1}, {"name": "g", "filename": "a.py", "line": 2}]
dump("torch_1_13.pickle", [
    {"device": 0, "address": 0x100000, "total_size": 2 << 20, "allocated_size": 512, "active_size": 512, "stream": 0,
     "segment_type": "small", "blocks": [
         {"size": 512, "state": "active_allocated", "history": [{"addr": 0x100000, "real_size": 100, "frames": old_frames}]},
         {"size": (2 << 20) - 512, "state": "inactive"}]},
    {"device": 0, "address": 0x800000, "total_size": 20 << 20, "allocated_size": 0, "active_size": 20 << 20, "stream": 0,
     "segment_type": "large", "blocks": [
         {"size": 20 << 20, "state": "active_pending_free",
          "history": [{"addr": 0x800000, "real_size": 20000000, "frames": old_frames[:1]}, {"addr": 0x800000, "real_size": 3}]}]},
], 4)
dump("torch_2_0.pickle", {
    "segments": [{"device": 0, "address": 0x100000, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": [
        {"size": 512, "requested_size": 8, "state": "active_allocated"}, {"size": (2 << 20) - 512, "requested_size": 0, "state": "inactive"}]}],
    "device_traces": [[{"action": "alloc", "addr": 0x100000, "size": 8, "stream": 0, "frames": [frame],
                        "cpp_frames": [{"name": "at::empty", "filename": "e.cpp", "line": 5}]}]],
}, 4)
