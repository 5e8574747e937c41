"""Regions that sleep and wake while graphs, streams, record_stream, a history, a profiler, threads and
out-of-memory errors are in play: bytes, books and refusals are right. (Gapless only)"""
import copy
import io
import json
import pickle
import tempfile
import threading

from common import *

if NATIVE:
    skip("regions are Gapless'")
g = start(limit=2 * GIB)
r, problems, mistakes = rng(98), [], 0
side = torch.cuda.Stream()


def says(ok, text):
    if not ok:
        problems.append(text)


with g.region("weights"):
    weights = [fill(ints(size), 100 + k) for k, size in enumerate((5000, 3 * MIB, 40 * MIB, 300 * MIB, 129 * MIB))]
    x = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
    y = x + weights[1][:1].sum()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x + weights[2][: 1 << 20]) * 2
with g.region("cache", keep="discard"):
    cache = [ints(64 * MIB) for _ in range(6)]
model = torch.nn.Linear(256, 256).cuda()
g.move_to_region(model, "weights")
state = {name: t.cpu().clone() for name, t in model.state_dict().items()}
# A region takes what any thread allocates while it is open: others do not allocate then.
stop, errors, alone = threading.Event(), [], threading.Lock()


def heard(prof):
    """The totals of allocated bytes that a profile has of the card."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        prof.export_chrome_trace(path)
        with open(path) as f:
            events = json.load(f)["traceEvents"]
    memory = [e["args"] for e in events if e.get("name") == "[memory]" and e["args"].get("Device Type") == 1]
    return [m["Total Allocated"] for m in memory] or [0]


def worker():
    """Requests beside, on a stream of its own, while regions come and go."""
    mine, kept = rng(5), []
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                mark = mine.randrange(1 << 18)
                with alone:
                    kept.append((fill(ints(log_uniform(mine, 512, 8 * MIB)), mark), mark))
                if len(kept) > 8:
                    t, mark = kept.pop(mine.randrange(8))
                    with alone:
                        if int(wrong(t, mark)):
                            errors.append("wrong bytes beside")
                    del t
    except BaseException as error:
        errors.append(repr(error)[:160])


thread = threading.Thread(target=worker)
thread.start()
torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=5000)
cycles, asleep_errors = 12, 0
for cycle in range(cycles):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # work that is under way when the region falls asleep
        busy(5)
        late = weights[3] + 1
    weights[3].record_stream(side)
    with alone, g.region("weights"):
        gone = fill(ints(480 * MIB), 7)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        g.sleep("weights")
        g.sleep("cache")
        del gone  # while it sleeps
    totals = heard(prof)
    says(all(0 <= total <= 2 * GIB for total in totals), f"the profiler hears of {min(totals)} to {max(totals)} bytes")
    mistakes += int(wrong(late, 104))
    del late
    # The sleeping region makes room: this does not fit beside it.
    big = fill(ints(1700 * MIB), cycle)
    mistakes += int(wrong(big, cycle))
    # Everything that would read sleeping bytes is refused, and changes nothing.
    tries = {
        "cpu": lambda: weights[1].cpu(),
        "tolist": lambda: weights[0].tolist(),
        "item": lambda: weights[1][5].item(),
        "bool": lambda: bool(weights[1][5]),
        "add": lambda: weights[1] + 1,
        "in place": lambda: weights[1].add_(1),
        "copy from": lambda: torch.empty_like(weights[1]).copy_(weights[1]),
        "copy to": lambda: weights[1].copy_(torch.empty_like(weights[1])),
        "save": lambda: torch.save(model.state_dict(), io.BytesIO()),
        "deepcopy": lambda: copy.deepcopy(model),
        "pickle": lambda: pickle.dumps(weights[0]),
        "to": lambda: copy.copy(model).to("cpu"),
        "storage": lambda: weights[1].untyped_storage().cpu(),
        "clone of storage": lambda: weights[1].untyped_storage().clone(),
        "forward": lambda: model(torch.ones(1, 256, device="cuda")),
        "resize": lambda: torch.Tensor.resize_(weights[1][:10], 20 << 20),
        "equal": lambda: torch.equal(weights[1], weights[1]),
        "record_stream": lambda: weights[1].record_stream(side),
        "share": lambda: g.share({"a": weights[1]}),
    }
    if cycle < 2:
        for name, act in tries.items():
            try:
                act()
                problems.append(f"{name}: sleeping bytes were used")
            except RuntimeError as error:
                asleep_errors += "sleep" in str(error)
                if "sleep" not in str(error):
                    problems.append(f"{name}: {str(error)[:80]}")
    says("asleep" in repr(weights[1]), "a sleeping tensor is printed as an awake one")
    try:  # there is no room: it sleeps on, whole
        g.wake("weights")
        problems.append("two gigabytes hold more than two")
    except torch.OutOfMemoryError:
        pass
    del big
    torch.cuda.empty_cache()
    if cycle % 3 == 2:
        g.wake("cache")
        g.switch(sleep="cache", wake="weights")
    else:
        g.wake("weights")
    x.fill_(cycle)
    graph.replay()
    mistakes += int((y != (cycle + weights[2][: 1 << 20]) * 2).sum())
    mistakes += sum(int(wrong(w, 100 + k)) for k, w in enumerate(weights))
    says(all(torch.equal(t.cpu(), state[name]) for name, t in model.state_dict().items()), "the model has other weights")
    g.wake("cache")
    for k, c in enumerate(cache):
        fill(c, k)
    mistakes += sum(int(wrong(c, k)) for k, c in enumerate(cache))
    if cycle == 5:
        try:
            again = torch.cuda.CUDAGraph()
            # A copy to the host beside it would end the capture.
            with alone, torch.cuda.graph(again):
                z = x + 1
                g.sleep("cache")
            problems.append("a region fell asleep in a capture")
        except Exception as error:
            says("captur" in str(error).lower(), f"in a capture: {str(error)[:80]}")
        z = again = None
    if len(problems) > 4:
        break
stop.set()
thread.join(30)
torch.cuda.memory._record_memory_history(enabled=None)
torch.cuda.synchronize()
problems += errors + adds_up()
ok = mistakes == 0 and not problems
done(ok, f"{cycles} cycles, {mistakes} wrong elements, {asleep_errors} refusals; {problems[:4]}")
