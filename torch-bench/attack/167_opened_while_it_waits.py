"""A thread of the sender empties the cache, and waits for the card with that, while a stream stands still. Another
process opens tensors that it was told of before, reads them, drops them and answers: no thread of it waits for the
sender, and the stream goes on when the answer is there."""
import base64
import ctypes
import pickle
import subprocess
import sys
import threading

from common import *

if len(sys.argv) > 1:
    start(limit=1 * GIB)
    warm = fill(ints(MIB), 1)
    int(wrong(warm, 1))
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            began, bad = time.monotonic(), 0
            for (function, args), mark in pickle.loads(base64.b64decode(line)):
                x = function(*args)
                bad += int(wrong(x, mark))
                del x
            print("read", bad, f"{time.monotonic() - began:.3f}", flush=True)
        except BaseException as error:
            print("failed", str(error).replace("\n", " ")[:200], flush=True)
    os._exit(0)

from torch.multiprocessing.reductions import reduce_tensor

g = start(limit=2 * GIB)
cuda = driver()
if not hasattr(cuda, "cuStreamWaitValue32_v2"):
    skip("this driver has no cuStreamWaitValue32")
reader = subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), "read"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
stalled, problems, mistakes, r = torch.cuda.Stream(), [], 0, rng(167)
flag = torch.zeros(1, dtype=torch.int32).pin_memory()
reader.stdout.readline()
warm = fill(ints(MIB), 1)
int(wrong(warm, 1))
torch.cuda.synchronize()
for turn in range(1, 5):
    sent = [(fill(ints(log_uniform(r, 4096, 30 * MIB)), turn + k), turn + k) for k in range(8)]
    junk = [ints(40 * MIB) for _ in range(4)]
    torch.cuda.synchronize()
    told = base64.b64encode(pickle.dumps([(reduce_tensor(x), mark) for x, mark in sent])).decode()
    del junk
    with torch.cuda.stream(stalled):
        z = ints(20 * MIB)
    status = cuda.cuStreamWaitValue32_v2(
        ctypes.c_void_p(stalled.cuda_stream), ctypes.c_void_p(flag.data_ptr()), ctypes.c_uint(turn), ctypes.c_uint(0)
    )
    if status:
        reader.kill()
        skip(f"cuStreamWaitValue32 gave {status}")
    with torch.cuda.stream(stalled):
        fill(z, turn)
    empties = threading.Thread(target=torch.cuda.empty_cache)
    empties.start()
    time.sleep(0.3)
    reader.stdin.write(told + "\n")
    reader.stdin.flush()
    late = threading.Timer(20, lambda: flag.fill_(1 << 20))
    late.start()
    words = reader.stdout.readline().split(" ", 2)
    late.cancel()
    flag[0] = turn
    empties.join(30)
    if words[0] != "read" or float(words[2]) > 15:
        problems.append(f"turn {turn}: {' '.join(words).strip()[:200]}")
        break
    mistakes += int(words[1])
    with torch.cuda.stream(stalled):
        mistakes += int(wrong(z, turn))
    del sent, z
    torch.cuda.ipc_collect()
flag[0] = 1 << 20
torch.cuda.synchronize()
reader.stdin.close()
try:
    reader.wait(20)
except subprocess.TimeoutExpired:
    reader.kill()
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"4 turns, {mistakes} wrong elements")
