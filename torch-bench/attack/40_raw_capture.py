"""A capture that the program makes through the driver must stay whole while other streams allocate, free and are
recorded."""
import ctypes
import threading

from common import *

g = start(limit=2 * GIB)
cuda = driver()
handle = new_stream(cuda)
S, A, B = torch.cuda.ExternalStream(handle), torch.cuda.Stream(), torch.cuda.Stream()
x = torch.zeros(1 << 16, device="cuda")
with torch.cuda.stream(S):
    x.add_(1).mul_(2)  # kernels are loaded before
with torch.cuda.stream(A):
    warm = wrong(fill(ints(8 * MIB), 1), 1)
torch.cuda.synchronize()
x.zero_()
torch.cuda.synchronize()
bad = []


def churn(first, second, seed):
    bad.extend(freed_while_read(first, second, seed, 60, 48 * MIB))


problem = ""
for turn in range(4):
    status = cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(handle), ctypes.c_int(2))  # relaxed
    if status:
        done(False, f"cuStreamBeginCapture gave {status}")
    with torch.cuda.stream(S):
        x.add_(1)
    other = threading.Thread(target=churn, args=(torch.cuda.Stream(), torch.cuda.Stream(), 1000 * turn))
    other.start()
    churn(A, B, 1000 * turn + 500)
    other.join()
    with torch.cuda.stream(S):
        x.mul_(2)
    graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
    status = cuda.cuStreamEndCapture(ctypes.c_void_p(handle), ctypes.byref(graph))
    if status:
        problem = f"capture {turn}: cuStreamEndCapture gave {status}"
        break
    status = cuda.cuGraphInstantiateWithFlags(ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
    status = status or cuda.cuGraphLaunch(ready, ctypes.c_void_p(handle))
    torch.cuda.synchronize()
    cuda.cuGraphExecDestroy(ready)
    cuda.cuGraphDestroy(graph)
    if status:
        problem = f"capture {turn}: instantiating or launching gave {status}"
        break
torch.cuda.synchronize()
sums = sum(int(b) for b in bad)
expected = 0.0
for _ in range(4):
    expected = (expected + 1) * 2
if not problem and not bool((x == expected).all()):
    problem = f"the launches gave {float(x[0])}, not {expected}"
done(not problem and sums == 0, f"{problem or 'four captures whole'}; {sums} wrong elements beside them")
