"""Every snapshot with a history that is taken while threads allocate is whole: blocks fill segments, and frees follow
their allocations."""
import pickle
import tempfile
import threading

from common import *

g = start(limit=2 * GIB)
torch.cuda.memory._record_memory_history(max_entries=3000, stacks="python")
stop, bad, errors, problems = threading.Event(), [], [], []


def worker(seed):
    r, kept = rng(seed), []
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                mark = r.randrange(1 << 18)
                kept.append((fill(ints(log_uniform(r, 512, 6 * MIB)), mark), mark))
                if len(kept) > 10:
                    x, mark = kept.pop(r.randrange(10))
                    bad.append(int(wrong(x, mark)))
                    del x
                time.sleep(0.0005)
    except BaseException as error:
        errors.append(repr(error)[:160])


def check(snapshot):
    for s in snapshot["segments"]:
        if sum(b["size"] for b in s["blocks"]) != s["total_size"]:
            problems.append("blocks do not fill their segment")
        if sum(b["size"] for b in s["blocks"] if b["state"] == "active_allocated") != s["allocated_size"]:
            problems.append("allocated_size is not that of the blocks")
        at = s["address"]
        for b in s["blocks"]:
            if b["address"] != at:
                problems.append("a gap between blocks")
            at = b["address"] + b["size"]
    live, events, times = {}, 0, 0
    for e in snapshot["device_traces"][0]:
        events += 1
        if e["time_us"] + 1000 < times:
            problems.append("time goes back")
        times = max(times, e["time_us"])
        if e["action"] == "alloc":
            if e["addr"] in live:
                problems.append("an address is given out twice")
            live[e["addr"]] = e["size"]
        elif e["action"] == "free_completed":
            live.pop(e["addr"], None)
    held = {b["address"] for s in snapshot["segments"] for b in s["blocks"] if b["state"].startswith("active")}
    if len(snapshot["device_traces"][0]) < 3000 and not set(live) <= held:
        problems.append(f"{len(set(live) - held)} live blocks of the history are not in the segments")
    return events


threads = [threading.Thread(target=worker, args=(seed,)) for seed in range(2)]
for t in threads:
    t.start()
end, count, events = time.monotonic() + 6, 0, 0
with tempfile.TemporaryDirectory() as folder:
    while time.monotonic() < end and not problems and not errors:
        if count % 3 == 2:
            path = os.path.join(folder, "snapshot.pickle")
            torch.cuda.memory._dump_snapshot(path)
            with open(path, "rb") as f:
                events += check(pickle.load(f))
        else:
            events += check(torch.cuda.memory._snapshot())
        if count % 4 == 3:
            torch.cuda.memory._record_memory_history(enabled=None)
            torch.cuda.memory._record_memory_history(max_entries=3000, stacks="python")
        count += 1
stop.set()
for t in threads:
    t.join(30)
torch.cuda.memory._record_memory_history(enabled=None)
hang = any(t.is_alive() for t in threads)
ok = not problems and not errors and sum(bad) == 0 and not hang
text = f"{count} snapshots of {events} events, {len(bad)} blocks, {sum(bad)} wrong"
done(ok, f"{text}; {sorted(set(problems))[:3]} {errors[:1]}")
