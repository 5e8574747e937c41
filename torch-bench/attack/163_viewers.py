"""Every function of torch.cuda._memory_viz, which people look at snapshots with, takes snapshots of a program with
streams, pools, graphs, failures and a history that began late or is cut short; sizes in what they print are those of
the snapshot. Snapshots survive pickling and JSON, and two of them can be compared."""
import io
import json
import pickle
import tempfile
from contextlib import redirect_stdout

from common import *
from torch.cuda import _memory_viz as viz



def plain(lines, *_):
    """Its own way is a script that it downloads."""
    return lines


g = start(limit=1 * GIB)
problems, r = [], rng(163)


def says(ok, text):
    if not ok:
        problems.append(text)


def program(steps):
    """Something of everything; what it leaves is returned."""
    side, kept = torch.cuda.Stream(), []
    pool = torch.cuda.MemPool()
    for step in range(steps):
        with torch.cuda.stream(side if step % 4 == 0 else torch.cuda.current_stream()):
            kept.append(ints(log_uniform(r, 512, 30 * MIB)))
        if step % 5 == 0:
            kept[-1].record_stream(side)
        if len(kept) > 12:
            kept.pop(r.randrange(12))
        if step % 40 == 20:
            with torch.cuda.use_mem_pool(pool):
                kept.append(ints(3 * MIB))
        if step % 60 == 30:
            torch.cuda.empty_cache()
        if step % 70 == 50:
            try:
                ints(2 * GIB)
                problems.append("2 GiB were served")
            except torch.OutOfMemoryError:
                pass
    return kept, pool


def quietly(work):
    out = io.StringIO()
    with redirect_stdout(out):
        answer = work()
    return answer if answer is not None else out.getvalue()


def look(name, snapshot):
    segments = snapshot["segments"]
    reserved = sum(s["total_size"] for s in segments)
    for s in segments:
        says(sum(b["size"] for b in s["blocks"]) == s["total_size"], f"{name}: a segment's blocks do not fill it")
        at = s["address"]
        for b in s["blocks"]:
            says(b["address"] == at, f"{name}: a block lies elsewhere")
            at += b["size"]
            says(b["state"] in ("active_allocated", "active_pending_free", "inactive"), f"{name}: {b['state']}")
            says(b["state"] == "inactive" or 0 < b["requested_size"] <= b["size"], f"{name}: a block's sizes")
    for label, work in (
        ("segsum", lambda: viz.segsum(snapshot)),
        ("trace", lambda: viz.trace(snapshot)),
        ("memory", lambda: viz.memory(snapshot, plain)),
        ("segments", lambda: viz.segments(snapshot, plain)),
        ("trace_plot", lambda: viz.trace_plot(snapshot)),
        ("segment_plot", lambda: viz.segment_plot(snapshot)),
        ("calc_active", lambda: viz.calc_active(segments[0]) if segments else 0),
    ):
        try:
            answer = quietly(work)
            says(answer is not None, f"{name}: {label} says nothing")
            if label == "segsum":
                says("segments: " in answer, f"{name}: segsum says {answer[:80]!r}")
            if label == "segments" and reserved:
                # Lines of a flame graph: the last word is a size, and they add up.
                total = sum(int(line.rsplit(" ", 1)[1]) for line in answer.splitlines() if line)
                says(total == reserved, f"{name}: segments add up to {total}, not {reserved}")
        except Exception as error:
            problems.append(f"{name}: {label}: {type(error).__name__}: {str(error)[:120]}")
    again = pickle.loads(pickle.dumps(snapshot))
    says(again == snapshot, f"{name}: another one after pickling")
    try:
        json.dumps(snapshot)
    except (TypeError, ValueError) as error:
        problems.append(f"{name}: no JSON: {error}")


first = torch.cuda.memory._snapshot()
look("without a history", first)
forms = [
    dict(enabled="all", context="all", stacks="python", max_entries=100_000),
    dict(enabled="all", context="alloc", stacks="python", max_entries=7),
    dict(enabled="state", context="state", stacks="python", max_entries=1),
    dict(enabled="all", context=None, max_entries=100_000),
    dict(enabled="all", context="all", stacks="all", max_entries=300, clear_history=True),
]
for number, form in enumerate(forms):
    torch.cuda.memory._record_memory_history(**form)
    kept, pool = program(160)
    before = torch.cuda.memory._snapshot()
    look(f"form {number}", before)
    # Every event is of a kind that the viewers know, and none is of another card.
    kinds = {entry["action"] for trace in before["device_traces"] for entry in trace}
    known = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "snapshot", "oom"}
    says(kinds <= known, f"form {number}: {kinds - known}")
    count = sum(len(trace) for trace in before["device_traces"])
    says(count <= form["max_entries"], f"form {number}: {count} entries")
    kept = kept[::2]
    after = torch.cuda.memory._snapshot()
    try:
        quietly(lambda: viz.compare(before["segments"], after["segments"], plain))
    except Exception as error:
        problems.append(f"compare: {type(error).__name__}: {str(error)[:120]}")
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        torch.cuda.memory._dump_snapshot(file.name)
        look(f"form {number} from a file", pickle.load(open(file.name, "rb")))
    del kept, pool
    torch.cuda.memory._record_memory_history(None)
    says(not any(torch.cuda.memory._snapshot()["device_traces"]), f"form {number}: a history without recording")
problems += adds_up()
done(not problems, f"{len(problems)}: " + "; ".join(problems[:3]) if problems else f"{len(forms)} forms of histories")
