"""A process drops memory of another one while work in flight still reads it, and another thread of it captures graphs
all the while: what the work reads stays until it is done, no capture fails, and the sender has its memory back in the
end."""
import base64
import pickle
import subprocess
import sys
import threading

from common import *

if len(sys.argv) > 1:
    from torch.multiprocessing.reductions import reduce_tensor

    start(limit=1 * GIB)
    base = torch.cuda.memory_allocated()
    mine, turn = [], 0
    for line in sys.stdin:
        if line.startswith("end"):
            mine.clear()
            x = None
            for _ in range(200):
                torch.cuda.ipc_collect()
                if torch.cuda.memory_allocated() == base:
                    break
                time.sleep(0.02)
            print(torch.cuda.memory_allocated() - base, flush=True)
            break
        turn += 1
        mine = [fill(ints(size), turn + k) for k, size in enumerate((4096, 3 * MIB, 40 * MIB))]
        torch.cuda.synchronize()
        print(base64.b64encode(pickle.dumps([(reduce_tensor(x), turn + k) for k, x in enumerate(mine)])).decode(), flush=True)
    os._exit(0)

g = start(limit=2 * GIB)
sender = subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), "send"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
problems, mistakes, r, stop, captures = [], 0, rng(180), threading.Event(), [0]
x = torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
(x + 1).sum()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    int(wrong(fill(ints(MIB), 1), 1))
busy(0.1)
torch.cuda.synchronize()


def captures_all_the_while():
    mine = torch.cuda.Stream()
    try:
        while not stop.is_set():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(mine):
                graph.capture_begin(capture_error_mode="thread_local")
                y = x + captures[0]
                z = y * 2
                time.sleep(0.004)  # so that most moments are in a capture
                graph.capture_end()
                graph.replay()
            mine.synchronize()
            if int(z[0]) not in (2 * captures[0], 0):
                problems.append(f"a graph gave {int(z[0])}")
            captures[0] += 1
            del y, z, graph
    except BaseException as error:
        problems.append(f"capture: {type(error).__name__}: {str(error).splitlines()[0][:140] if str(error) else ''}")


thread = threading.Thread(target=captures_all_the_while)
thread.start()
turns, until = 0, time.monotonic() + 8
try:
    while time.monotonic() < until and not problems:
        sender.stdin.write("more\n")
        sender.stdin.flush()
        received = [(function(*args), mark) for (function, args), mark in pickle.loads(base64.b64decode(sender.stdout.readline()))]
        with torch.cuda.stream(side):
            busy(3)
            sums = [y + 1 for y, _ in received]
        marks = [mark for _, mark in received]
        y = None
        received.clear()  # the side stream has not read it yet
        with torch.cuda.stream(side):
            found = [wrong(s, mark + 1) for s, mark in zip(sums, marks)]
        side.synchronize()
        mistakes += sum(int(f) for f in found)
        del sums, found
        turns += 1
except BaseException as error:
    problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}")
stop.set()
thread.join(30)
sender.stdin.write("end\n")
sender.stdin.flush()
left = sender.stdout.readline().strip()
if left != "0":
    problems.append(f"the sender has {left} bytes left")
sender.wait(20)
torch.cuda.synchronize()
problems += adds_up()
done(not problems and mistakes == 0 and turns > 3, "; ".join(problems[:2]) or f"{turns} turns beside {captures[0]} captures, {mistakes} wrong elements")
