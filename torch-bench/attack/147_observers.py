"""Observers of failed requests that raise, allocate, free, ask for statistics, snapshots and histories, fail themselves
and come from four threads at once: each failure raises what torch raises, tells each observer in its turn, and leaves
bytes and books as they were."""
import threading

from common import *

g = start(limit=512 * MIB)
problems, told, local = [], [], threading.local()
kept, spare, mode = [(fill(ints(size), k), k) for k, size in enumerate((700, 3 * MIB, 60 * MIB))], [], ["plain"]
torch.cuda.synchronize()


class Mine(Exception):
    pass


def first(device, size, total, free):
    told.append(("first", threading.get_ident()))
    if device != 0 or size < GIB or total <= 0 or free < 0:
        problems.append(f"an observer was told {device}, {size}, {total}, {free}")


def second(device, size, total, free):
    told.append(("second", threading.get_ident()))
    if getattr(local, "inside", False):
        return
    local.inside = True
    try:
        if mode[0] == "raises":
            raise Mine("of an observer")
        if mode[0] == "allocates":
            x = fill(ints(2 * MIB), 5)
            if int(wrong(x, 5)):
                problems.append("a tensor of an observer is wrong")
        if mode[0] == "frees" and spare:
            spare.pop()
        if mode[0] == "asks":
            torch.cuda.memory_stats()
            torch.cuda.memory_snapshot()
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.memory._record_memory_history("all", max_entries=100)
            torch.cuda.memory._snapshot()
            torch.cuda.memory._record_memory_history(None)
        if mode[0] == "fails":
            try:
                torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
                problems.append("a request inside of an observer was served")
            except torch.OutOfMemoryError:
                pass
    finally:
        local.inside = False


def third(device, size, total, free):
    told.append(("third", threading.get_ident()))


for observer in (first, second, third):
    torch._C._cuda_attach_out_of_memory_observer(observer)


def fails():
    try:
        torch.empty(GIB, dtype=torch.uint8, device="cuda")
        return None
    except BaseException as error:
        return type(error)


for turn in range(3):
    for mode[0] in ("plain", "raises", "allocates", "frees", "asks", "fails"):
        if mode[0] == "frees":
            spare.append(ints(8 * MIB))
        told.clear()
        before = torch.cuda.memory_stats()
        got = fails()
        after = torch.cuda.memory_stats()
        wanted = Mine if mode[0] == "raises" else torch.OutOfMemoryError
        if got is not wanted:
            problems.append(f"{mode[0]}: {got}")
        names = [name for name, _ in told]
        right = {"raises": ["first", "second"], "fails": ["first", "second", "first", "second", "third", "third"]}
        if names != right.get(mode[0], ["first", "second", "third"]):
            problems.append(f"{mode[0]}: told {names}")
        if after["num_ooms"] - before["num_ooms"] != (2 if mode[0] == "fails" else 1):
            problems.append(f"{mode[0]}: {after['num_ooms'] - before['num_ooms']} failures were counted")
        if mode[0] != "frees" and after["allocated_bytes.all.current"] != before["allocated_bytes.all.current"]:
            problems.append(f"{mode[0]}: another amount is allocated")
        problems += adds_up()
# Four threads fail at once, with observers that raise in some of them.
results, mode[0] = [], "raises"


def worker():
    for _ in range(30):
        results.append(fails())


threads = [threading.Thread(target=worker) for _ in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
if results != [Mine] * 120:
    problems.append(f"threads got {sorted({str(kind) for kind in results})}")
x = fill(ints(300 * MIB), 9)
mistakes = int(wrong(x, 9)) + sum(int(wrong(x, mark)) for x, mark in kept)
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"138 failures, {mistakes} wrong elements")
