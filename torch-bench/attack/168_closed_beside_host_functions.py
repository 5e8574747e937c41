"""A process drops the last use of memory that another one shared, again and again, while host functions of its streams
free tensors behind work in flight: closing waits for the card, and the card's work for no thread that closes."""
import base64
import ctypes
import pickle
import subprocess
import sys
import threading

from common import *

if len(sys.argv) > 1:
    from torch.multiprocessing.reductions import reduce_tensor

    start(limit=1 * GIB)
    mine = [fill(ints(size), k) for k, size in enumerate((4096, 3 * MIB, 20 * MIB))]
    torch.cuda.synchronize()
    for line in sys.stdin:
        told = [(reduce_tensor(x), k) for k, x in enumerate(mine)]
        print(base64.b64encode(pickle.dumps(told)).decode(), flush=True)
    os._exit(0)

# Stays far from the limit: near it every allocator waits for streams, whose host functions wait for the allocator.
g = start(limit=3 * GIB)
cuda = driver()
try:
    torch_c = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    empty, delete, launch = torch_c.aoti_torch_empty_strided, torch_c.aoti_torch_delete_tensor_object, cuda.cuLaunchHostFunc
except (OSError, AttributeError) as error:
    skip(f"not here: {error}")
INT32, CUDA = 3, 1
sender = subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), "send"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
problems, mistakes, r, over = [], 0, rng(168), threading.Event()


def made(count):
    handle, word = ctypes.c_void_p(), ctypes.c_int64
    status = empty(word(1), (word * 1)(count), (word * 1)(1), ctypes.c_int32(INT32), ctypes.c_int32(CUDA), ctypes.c_int32(0), ctypes.byref(handle))
    if status != 0:
        raise RuntimeError(f"torch's C functions gave {status}")
    return handle


def rescue():
    if not over.wait(40):
        print("FAIL 168_closed_beside_host_functions: closing and the card wait for each other", flush=True)
        os._exit(1)


threading.Thread(target=rescue, daemon=True).start()
streams = [torch.cuda.Stream() for _ in range(2)]
for s in streams:
    with torch.cuda.stream(s):
        int(wrong(fill(ints(MIB), 1), 1))
busy(0.1)
torch.cuda.synchronize()
base = torch.cuda.memory_allocated()
for turn in range(40):
    sender.stdin.write("more\n")
    sender.stdin.flush()
    told = pickle.loads(base64.b64decode(sender.stdout.readline()))
    received = [(function(*args), mark) for (function, args), mark in told]
    for s in streams:
        with torch.cuda.stream(s):
            busy(5)
            for _ in range(3):
                handle = made(log_uniform(r, 128, 4 << 20))
                if launch(ctypes.c_void_p(s.cuda_stream), delete, handle) != 0:
                    problems.append("the driver takes no host function")
    wrongs = [wrong(x, mark) for x, mark in received]
    x = None
    del received  # closes while the streams are busy
    with torch.cuda.stream(streams[turn % 2]):
        y = fill(ints(log_uniform(r, 4096, 20 * MIB)), turn)
        wrongs.append(wrong(y, turn))
        del y
    torch.cuda.synchronize()
    mistakes += sum(int(w) for w in wrongs)
    del wrongs
over.set()
torch.cuda.synchronize()
if torch.cuda.memory_allocated() != base:
    problems.append(f"{torch.cuda.memory_allocated() - base} bytes stay")
sender.stdin.close()
try:
    sender.wait(20)
except subprocess.TimeoutExpired:
    sender.kill()
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"40 turns, {mistakes} wrong elements")
