"""Everything that torch says about memory has the same shape on both allocators: the keys of statistics, nested and
flat, of snapshots, their segments, blocks and entries of every action, of pools, of the accelerator's functions, the
lines of the summary, and the types and classes of what is returned and raised. On torch's own allocator two runs of it
are compared."""
import json
import re
import subprocess

from common import *


def shape(value, depth=0):
    """Keys and types, without values."""
    if isinstance(value, dict):
        return {str(key): shape(item, depth + 1) for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *sorted({json.dumps(shape(item, depth + 1)) for item in value})]
    return type(value).__name__


def asked(what):
    try:
        return shape(what())
    except BaseException as error:
        return f"{type(error).__name__}: {re.sub('0x[0-9a-f]+|[0-9.]+', '#', str(error))[:50]}"


def child():
    g = start(limit=GIB)
    memory, side = torch.cuda.memory, torch.cuda.Stream()
    story = {}
    memory._record_memory_history("all", stacks="python")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        x = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
        small = torch.empty(700, dtype=torch.uint8, device="cuda")
    x.record_stream(torch.cuda.current_stream())
    del x
    with torch.autograd.profiler.record_function("named"):
        y = torch.zeros(1000, device="cuda")
    try:
        torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        story["raised"] = [c.__name__ for c in type(error).__mro__]
        story["said"] = sorted(re.findall(r"[A-Z][a-z]+ out of memory|Tried to allocate [0-9.]+ \wiB|GPU \d+ has a total capacity", str(error)))
    torch.cuda.synchronize()
    snapshot = memory._snapshot()
    story["snapshot"] = sorted(snapshot)
    story["settings"] = shape(snapshot["allocator_settings"])
    for segment in snapshot["segments"]:
        story.setdefault("segment", shape({key: item for key, item in segment.items() if key not in ("blocks", "frames")}))
        for block in segment["blocks"]:
            story.setdefault(f"block {block['state']}", sorted(block))
    for entry in snapshot["device_traces"][0]:
        if not entry["action"].startswith("segment"):
            story.setdefault(f"entry {entry['action']}", shape({key: item for key, item in entry.items() if key != "frames"}))
    for entry in snapshot["external_annotations"] if "external_annotations" in snapshot else []:
        story.setdefault("annotation", sorted(entry))
    memory._record_memory_history(None)
    # Blocks that came while it was recorded keep their stacks, others have none.
    late = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (2100, 7 * MIB)]
    frames = {}
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                frames[block["requested_size"]] = bool(block["frames"])
    story["stacks after the end"] = [frames.get(size) for size in (700, 3 * MIB, 4000, 2100, 7 * MIB)]
    del small
    again = torch.empty(700, dtype=torch.uint8, device="cuda")
    frames = [b["frames"] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if (b["requested_size"], b["state"]) == (700, "active_allocated")]
    story["stacks of what came since"] = [bool(found) for found in frames]
    del late, again
    stats = torch.cuda.memory_stats()
    story["stats"] = shape(stats)
    story["nested"] = shape(torch.cuda.memory_stats_as_nested_dict())
    story["summary"] = re.sub("[0-9.]+ *[KMGT]?i?B?", "#", torch.cuda.memory_summary()).replace(" ", "").splitlines()[:60]
    story["short summary"] = len(torch.cuda.memory_summary(abbreviated=True).splitlines())
    for name, what in {
        "allocated": lambda: torch.cuda.memory_allocated(),
        "peak": lambda: torch.cuda.max_memory_allocated(),
        "reserved": lambda: torch.cuda.memory_reserved(),
        "reserved peak": lambda: torch.cuda.max_memory_reserved(),
        "cached": lambda: torch.cuda.memory_cached(),
        "info": lambda: torch.cuda.mem_get_info(),
        "fraction": lambda: torch.cuda.get_per_process_memory_fraction(),
        "wrong fraction": lambda: torch.cuda.set_per_process_memory_fraction(1.5),
        "fraction of a word": lambda: torch.cuda.set_per_process_memory_fraction("a"),
        "fraction that is none": lambda: torch._C._cuda_setMemoryFraction(float("nan"), 0),
        "pool's uses": lambda: pool.use_count(),
        "pool's snapshot": lambda: [sorted(segment) for segment in pool.snapshot()],
        "pool's id": lambda: pool.id,
        "unknown pool": lambda: torch.cuda.memory_snapshot((77, 77)),
        "no pool": lambda: [sorted(segment) for segment in torch.cuda.memory_snapshot((0, 0))],
        "delete nothing": lambda: torch.cuda.caching_allocator_delete(12345),
        "delete twice": lambda: [torch.cuda.caching_allocator_delete(p) for p in [torch.cuda.caching_allocator_alloc(10)] * 2],
        "nothing": lambda: torch.cuda.caching_allocator_alloc(0),
        "state of an unknown pool": lambda: torch._C._cuda_getCheckpointState(0, (7, 7)),
        "live in an unknown pool": lambda: torch._C._cuda_checkPoolLiveAllocations(0, (7, 7), set()),
        "history of a word": lambda: memory._record_memory_history("some"),
        "context of a word": lambda: memory._record_memory_history("all", context="some"),
        "stacks of a word": lambda: memory._record_memory_history("all", stacks="some"),
        "unknown action": lambda: memory._record_memory_history("all", skip_actions=["some"]),
        "no such card": lambda: torch.cuda.memory_stats(55),
        "accelerator stats": lambda: torch.accelerator.memory_stats(),
        "accelerator allocated": lambda: torch.accelerator.memory_allocated(),
        "accelerator peak": lambda: torch.accelerator.max_memory_allocated(),
        "accelerator reserved": lambda: torch.accelerator.memory_reserved(),
        "accelerator info": lambda: torch.accelerator.get_memory_info(),
        "accelerator empty": lambda: torch.accelerator.empty_cache(),
        "accelerator peaks": lambda: torch.accelerator.reset_peak_memory_stats(),
        "accelerator totals": lambda: torch.accelerator.reset_accumulated_memory_stats(),
        "host": lambda: torch.cuda.host_memory_stats(),
        "host's peaks": lambda: torch.cuda.reset_peak_host_memory_stats(),
        "sizes": lambda: memory._get_expandable_segment_sizes() if hasattr(memory, "_get_expandable_segment_sizes") else None,
        "collect": lambda: torch.cuda.ipc_collect(),
        "address": lambda: torch._C._cuda_isHistoryEnabled() if hasattr(torch._C, "_cuda_isHistoryEnabled") else None,
    }.items():
        story[name] = asked(what)
    memory._record_memory_history(None)
    del inside, y
    print(json.dumps(story))


if len(sys.argv) > 1:
    child()
    sys.exit(0)
told = []
for native in (NATIVE, True):
    env = os.environ | {"GAPLESS": "0" if native else "1"}
    run = subprocess.run([sys.executable, sys.argv[0], "child"], env=env, capture_output=True, text=True, timeout=60)
    if run.returncode:
        print(run.stderr[-1500:])
        done(False, f"a child ended with {run.returncode}")
    told.append(json.loads(run.stdout.splitlines()[-1]))
mine, theirs = told
problems = [f"{key}: {mine.get(key)} instead of {theirs.get(key)}"[:700] for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]
for problem in problems[:12]:
    print(problem)
done(not problems, f"{len(mine)} questions, {len(problems)} answered in another shape")
