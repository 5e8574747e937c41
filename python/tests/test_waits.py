"""Calls that wait for work of the card, while that work stands still: other threads request, free and ask meanwhile,
and so can let it go on. Natively they would wait for the one that waits."""

import sys

import pytest

from test_oom import START

MIB = 1 << 20

# Work stands still as long as the file exists. `waits` runs in a thread, and ends only after that.
PROGRAM = """
import ctypes, time, faulthandler
faulthandler.dump_traceback_later(60, exit=True)
card, stall = ctypes.CDLL("libcuda.so.1"), os.environ["STANDIN_STALL"]
side, other = torch.cuda.Stream(), torch.cuda.Stream()
kept = [of(8), torch.empty(1000, device="cuda")]
with torch.cuda.stream(other):
    kept += [of(8), torch.empty(1000, device="cuda")]
pool = torch.cuda.MemPool()

def frees_of_another_stream():
    return of(90).numel() == 90 * MIB

def memory_of_another_pool():
    with torch.cuda.use_mem_pool(pool):
        return of(90).numel() == 90 * MIB

def memory_of_another_stream():
    with torch.cuda.stream(side):
        return of(90).numel() == 90 * MIB

def cached_memory():
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() < 60 * MIB

def cached_memory_by_our_name():
    return gapless.trim() >= 60 * MIB

x = of(60)
if WHAT is frees_of_another_stream:
    y = of(30)
    card.card_hold(1)
    x.record_stream(side)
    y.record_stream(side)
    del y
else:
    card.card_hold(1)
del x
open(stall, "w").close()
got = []
thread = threading.Thread(target=lambda: got.append(WHAT()))
thread.start()
time.sleep(0.3)
print("waits" if thread.is_alive() else f"is over: {got}")
# Whatever a program does to let the work go on.
small = torch.empty(1000, device="cuda")
del small
with torch.cuda.stream(other):
    large = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    large.record_stream(torch.cuda.default_stream())
    del large
torch.cuda.memory_allocated(), torch.cuda.memory_stats(), torch.cuda.memory_snapshot(), gapless.stats()
torch.cuda.reset_peak_memory_stats()
print("goes on" if thread.is_alive() else f"was over: {got}")
os.remove(stall)
thread.join(30)
card.card_hold(0)
print(got)
"""

WAYS = ["frees_of_another_stream", "memory_of_another_pool", "memory_of_another_stream", "cached_memory", "cached_memory_by_our_name"]


@pytest.mark.parametrize("way", WAYS)
def test_no_thread_waits_for_one_that_waits_for_work(real, tmp_path, way):
    program = START + PROGRAM.replace("WHAT", way)
    stall = str(tmp_path / "stands")
    done = real.start([sys.executable, "-c", program], tmp_path, cold=True, STANDIN_CAPACITY=str(128 * MIB), STANDIN_STALL=stall, GAPLESS_OOM_DIR=None)
    assert done.code == 0, done.out + done.err
    assert done.lines() == ["waits", "goes on", "[True]"]
