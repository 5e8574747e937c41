"""A stream waits for a value that the host writes later. Meanwhile a soft budget is passed, and what the program holds
beside the pool passes the process's budget, so that free memory is given back: neither waits for that stream, since the
value comes only after the next requests. Bytes are whole. (Gapless only)"""
import ctypes
import threading

from common import *

if NATIVE:
    skip("budgets are Gapless'")
g = start(limit=3 * GIB, budget="5GiB")
cuda = driver()
if not hasattr(cuda, "cuStreamWaitValue32_v2"):
    skip("this driver has no cuStreamWaitValue32")
stalled, side = torch.cuda.Stream(), torch.cuda.Stream()
flag = torch.zeros(1, dtype=torch.int32).pin_memory()
problems, mistakes, over, where = [], 0, threading.Event(), ["the beginning"]
P = ctypes.c_void_p
late = []


def rescue(turn):
    """A wait that should not be ends the run, and is told."""
    if not over.wait(6):
        late.append(where[0])
        flag[0] = 1 << 20


def stand_still(turn):
    status = cuda.cuStreamWaitValue32_v2(P(stalled.cuda_stream), P(flag.data_ptr()), ctypes.c_uint(turn), ctypes.c_uint(0))
    if status:
        skip(f"cuStreamWaitValue32 gave {status}")


warm = fill(ints(MIB), 1)
int(wrong(warm, 1))
warm = (warm + 1).fill_(3)  # kernels are loaded before: loading waits for the card
int((warm != 3).sum())
torch.cuda.synchronize()
watch = threading.Thread(target=rescue, args=(0,), daemon=True)
watch.start()
for turn in range(1, 7):
    # Memory that the stalled stream reads later.
    x = fill(ints(40 * MIB), turn)
    ready = torch.cuda.current_stream().record_event()
    stand_still(turn)
    stalled.wait_event(ready)
    with torch.cuda.stream(stalled):
        read = x + 1
    x.record_stream(stalled)
    del x
    spare = ints(20 * MIB)
    # Free memory to give back, of two streams.
    junk = [ints(50 * MIB) for _ in range(6)]
    with torch.cuda.stream(side):
        junk += [ints(50 * MIB) for _ in range(6)]
    del junk
    if turn % 2:
        del spare
        where[0] = f"turn {turn}: a soft budget is passed"
        with g.budget("2GiB", tag="press", soft="96MiB"):
            kept = [fill(ints(30 * MIB), 10 * turn + k) for k in range(8)]
    else:
        where[0] = f"turn {turn}: what is beside the pool passes the budget"
        beside = []
        for _ in range(5):
            address = ctypes.c_uint64()
            if hasattr(cuda, "cuMemAlloc_v2") and cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(900 * MIB)) == 0:
                beside.append(address)
        time.sleep(0.7)  # the looks of the thread that watches budgets
        # A request could fail now, and a request that fails waits first. What was there can be freed and counted.
        kept = []
        del spare
        torch.cuda.memory_stats()
        # Freeing waits for the whole card, by CUDA's rules: after the value is there.
    where[0] = f"turn {turn}: after it"
    if turn % 2:
        with torch.cuda.stream(side):
            other = ints(MIB).fill_(3)
            bad = (other != 3).sum()
        side.synchronize()
        mistakes += int(bad)
        del other, bad
    flag[0] = turn  # now it goes on
    stalled.synchronize()
    if not turn % 2:
        for address in beside:
            cuda.cuMemFree_v2(address)
        time.sleep(0.7)
    mistakes += int(wrong(read, turn + 1)) + sum(int(wrong(t, 10 * turn + k)) for k, t in enumerate(kept))
    del read, kept
    torch.cuda.synchronize()
    if late:
        break
over.set()
figures = g.stats()
pressed, outside = figures.get("gapless.budgets.press.pressed"), figures.get("gapless.budget.outside", 0) >> 20
if late:
    problems.append(f"the program stood still at {late[0]}")
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:2]) or f"pressed {pressed} times, {outside} MiB outside, {mistakes} wrong elements")
