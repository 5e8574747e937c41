"""Captures through the driver (as Warp, CuPy and TensorRT make them) of torch's own streams stay whole while other
streams and threads allocate, free and are recorded: of a stream that asks for memory in the capture, of one that asked
before, and of one that never does."""
import ctypes
import threading

from common import *

g = start(limit=3 * GIB)
cuda = driver()
RELAXED = 2
pointer = ctypes.c_void_p
if hasattr(cuda, "card_begin_capture"):
    # The stand-in has captures, and no graphs to launch.
    begin = lambda stream: cuda.card_begin_capture(ctypes.c_uint64(stream))
    end = lambda stream: cuda.card_end_capture(ctypes.c_uint64(stream))
    WORKS = False
else:
    ready = pointer()
    WORKS = True

    def begin(stream):
        return cuda.cuStreamBeginCapture_v2(pointer(stream), ctypes.c_int(RELAXED))

    def end(stream):
        graph = pointer()
        status = cuda.cuStreamEndCapture(pointer(stream), ctypes.byref(graph))
        if status == 0:
            status = cuda.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
            cuda.cuGraphDestroy(graph)
        return status


# torch has 32 streams of a priority, and gives them in turn: none of these is captured below.
A, B, C, D = (torch.cuda.Stream() for _ in range(4))
bad, kept, problems = [], [], []
x = torch.zeros(1 << 16, device="cuda")


def churn(first, second, seed):
    bad.extend(freed_while_read(first, second, seed, 40, 24 * MIB))


def turn(number, stream, handle, asks):
    """One capture; what is wrong with it."""
    with torch.cuda.stream(stream):
        x.add_(1).mul_(2)  # kernels are loaded before
        stream.synchronize()
        x.zero_()
        if asks == "before":
            kept.append(ints(5 * MIB))
    torch.cuda.synchronize()
    status = begin(handle)
    if status:
        return f"a capture cannot begin: {status}"
    with torch.cuda.stream(stream):
        x.add_(1)
        if asks == "inside":
            # Kept for good: nothing else keeps memory of a graph that torch does not know.
            kept.append(ints(3 * MIB).fill_(number))
    other = threading.Thread(target=churn, args=(C, D, 1000 * number))
    other.start()
    churn(A, B, 1000 * number + 500)
    other.join()
    with torch.cuda.stream(stream):
        x.mul_(2)
    status = end(handle)
    if status:
        return f"cuStreamEndCapture gave {status}"
    if WORKS:
        for _ in range(3):
            status = status or cuda.cuGraphLaunch(ready, pointer(handle))
        torch.cuda.synchronize()
        cuda.cuGraphExecDestroy(ready)
        if status or not bool((x == 14).all()):
            return f"launches gave {status} and {float(x[0])}, not 14"
        if asks == "inside" and not bool((kept[-1] == number).all()):
            return "what was allocated in the capture is not what its graph wrote"
    return None


churn(A, B, 0)
number = 0
for asks in ("never", "before", "inside"):
    for priority in (0, -1):
        for read in (lambda s: s.cuda_stream, lambda s: s._as_parameter_.value):
            number += 1
            stream = torch.cuda.Stream(priority=priority)
            said = turn(number, stream, read(stream), asks)
            if said:
                problems.append(f"asks {asks}, priority {priority}: {said}")
# A handle that nothing of torch's Python read, of a stream that asks.
for asks in ("before", "inside"):
    number += 1
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        kept.append(ints(MIB))
        handle = torch._C._cuda_getCurrentRawStream(0)
    said = turn(number, stream, handle, asks)
    if said:
        problems.append(f"a handle of the current stream, asks {asks}: {said}")
torch.cuda.synchronize()
sums = sum(int(b) for b in bad)
problems += adds_up()
done(not problems and sums == 0, "; ".join(problems[:3]) or f"{number} captures whole, {sums} wrong elements beside them")
