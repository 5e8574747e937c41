"""While one stream waits for a value that only the host writes, other streams allocate, free, run and are read, and
marks of steps come by: nothing may wait for the stalled stream, and what it reads later is whole."""
import ctypes
import threading

from common import *

g = start(limit=4 * GIB)
cuda = driver()
if not hasattr(cuda, "cuStreamWaitValue32_v2"):
    skip("this driver has no cuStreamWaitValue32")
stalled, busy_ones = torch.cuda.Stream(), [torch.cuda.Stream() for _ in range(3)]
flag = torch.zeros(1, dtype=torch.int32).pin_memory()
r, mistakes, over, rounds = rng(75), 0, threading.Event(), 0
late = []


def rescue():
    """So that a wait which should not be ends the run, and is told."""
    if not over.wait(25):
        late.append(True)
        flag[0] = 1 << 20


threading.Thread(target=rescue, daemon=True).start()
# Kernels and libraries are loaded before.
warm = fill(ints(MIB), 1)
int(wrong(warm, 1))
warm = warm + 1
torch.cuda.synchronize()
for turn in range(1, 7):
    # The stream stands still until the flag is `turn` or more.
    status = cuda.cuStreamWaitValue32_v2(
        ctypes.c_void_p(stalled.cuda_stream), ctypes.c_void_p(flag.data_ptr()), ctypes.c_uint(turn), ctypes.c_uint(0)
    )
    if status:
        skip(f"cuStreamWaitValue32 gave {status}")
    read = []
    for k in range(12):
        size = log_uniform(r, 64 * KIB, 24 * MIB)
        x = fill(ints(size), 100 * turn + k)
        ready = torch.cuda.current_stream().record_event()
        stalled.wait_event(ready)
        with torch.cuda.stream(stalled):
            read.append((x + 1, 100 * turn + k + 1))  # queued; it runs when the flag comes
        x.record_stream(stalled)
        del x
    kept = []
    for step in range(150):
        with torch.cuda.stream(busy_ones[step % 3] if step % 4 else torch.cuda.default_stream()):
            mark = r.randrange(1 << 18)
            kept.append((fill(ints(log_uniform(r, 512, 32 * MIB)), mark), mark, torch.cuda.current_stream()))
            if len(kept) > 12:
                x, mark, s = kept.pop(r.randrange(12))
                with torch.cuda.stream(s):
                    mistakes += int(wrong(x, mark))  # the host waits for this stream alone
                del x
        if g is not None and step % 30 == 29:
            g.step()
    for x, mark, s in kept:
        with torch.cuda.stream(s):
            mistakes += int(wrong(x, mark))
    del kept, x, s
    if late:
        break
    if stalled.query():
        mistakes += 1_000_000  # it did not stand still: nothing was shown
    flag[0] = turn
    torch.cuda.synchronize()
    for y, mark in read:
        mistakes += int(wrong(y, mark))
    del read, y
    rounds += 1
    if turn % 2:
        torch.cuda.empty_cache()
over.set()
ok = mistakes == 0 and not late and not adds_up()
done(ok, f"{rounds} rounds, {mistakes} wrong{'; a request waited for the stalled stream' if late else ''}")
