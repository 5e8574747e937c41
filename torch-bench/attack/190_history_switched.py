"""Histories that are begun, changed, cleared and ended in one thread, while four others allocate, free and record
streams, and another captures graphs: each snapshot's history is a story that can have been. No address comes while it
is there, none goes that did not come, and frees are completed after they were asked for."""
import threading

from common import *

g = start(limit=2 * GIB)
many_snapshots()
stop, problems = threading.Event(), []


def worker(k):
    r, kept, side = rng(k), [], torch.cuda.Stream()
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                kept.append(torch.empty(log_uniform(r, 1, 4 * MIB), dtype=torch.uint8, device="cuda"))
                # Few: torch's own allocator frees none of these while a capture is open.
                if r.random() < 0.02:
                    kept[-1].record_stream(side)
                while len(kept) > 20:
                    kept.pop(r.randrange(len(kept)))
    except BaseException as error:
        problems.append(f"a worker: {error!r}"[:200])


def capturer():
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.ones(1000, device="cuda")
            while not stop.is_set():
                graph = torch.cuda.CUDAGraph()
                torch.cuda.current_stream().synchronize()
                graph.capture_begin(capture_error_mode="thread_local")
                y = x + 1
                graph.capture_end()
                graph.replay()
                torch.cuda.current_stream().synchronize()
                del y, graph
                time.sleep(0.02)
    except BaseException as error:
        problems.append(f"captures: {error!r}"[:200])


def story(entries):
    """The entries that contradict each other. An address from before the history contradicts nothing."""
    state, wrongs = {}, []
    for at, entry in enumerate(entries):
        address, action = entry.get("addr", 0), entry["action"]
        before = state.get(address)
        if action == "alloc":
            if before in ("here", "going"):
                wrongs.append(f"entry {at}: {address:#x} comes while it is {before}")
            state[address] = "here"
        elif action == "free_requested":
            if before in ("going", "gone"):
                wrongs.append(f"entry {at}: {address:#x} is given back while it is {before}")
            state[address] = "going"
        elif action == "free_completed":
            if before == "here" or before == "gone":
                wrongs.append(f"entry {at}: {address:#x} is free while it is {before}")
            state[address] = "gone"
    times = [entry["time_us"] for entry in entries]
    if any(b < a - 200_000 for a, b in zip(times, times[1:])):
        wrongs.append("times go back")
    return wrongs


threads = [threading.Thread(target=worker, args=(k,)) for k in range(4)] + [threading.Thread(target=capturer)]
for t in threads:
    t.start()
r, looks = rng(9), 0
end = time.monotonic() + 15
record = torch.cuda.memory._record_memory_history
while time.monotonic() < end and not problems:
    record("all", context=r.choice((None, "state", "alloc", "all")), stacks="python", max_entries=r.choice((50, 2000, 100_000)), clear_history=True)
    for _ in range(r.randrange(1, 4)):
        time.sleep(0.01 * r.random())
        snapshot = torch.cuda.memory._snapshot()
        looks += 1
        problems += story(snapshot["device_traces"][0])[:2]
        live = {b["address"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"}
        if not live:
            problems.append("nothing is there")
    if r.random() < 0.5:
        record(None)
        if torch.cuda.memory._snapshot()["device_traces"][0]:
            problems.append("a history that ended has entries")
stop.set()
for t in threads:
    t.join()
record(None)
problems += adds_up()
for problem in problems[:6]:
    print(problem)
done(not problems, f"{looks} snapshots beside five threads, {len(problems)} problems")
