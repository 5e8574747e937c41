"""Graphs of torch as child nodes of a graph that the driver makes, uploaded and launched on streams of the program's
own, and updated in place to a graph that was captured again elsewhere in memory, give the right values."""
import ctypes

from common import *

g = start(limit=2 * GIB)
cuda = driver()
if any(not hasattr(cuda, name) for name in ("cuGraphCreate", "cuGraphAddChildGraphNode", "cuGraphExecUpdate_v2", "cuGraphUpload")):
    skip("this driver lacks calls")
P = ctypes.c_void_p
n, problems, mistakes, r = 1 << 20, [], 0, rng(109)
x = torch.zeros(n, dtype=torch.int32, device="cuda")
side, outside = torch.cuda.Stream(), new_stream(cuda)
updates, rebuilt = 0, 0


class Update(ctypes.Structure):
    _fields_ = [("result", ctypes.c_int), ("node", P), ("from_node", P)]


def call(name, *arguments):
    status = getattr(cuda, name)(*arguments)
    if status:
        problems.append(f"{name} gave {status}")
    return status == 0


def captured(k, pool, source):
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, pool=pool, stream=side):
        y = source + k
        for _ in range(5):
            y = y * 3 - source
    return graph, y


def want(value, k):
    y = value + k
    for _ in range(5):
        y = y * 3 - value
    return y


def wrap32(value):
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def junk():
    kept = [ints(log_uniform(r, 512, 30 * MIB)).fill_(-1) for _ in range(8)]
    del kept


def parent(first, second):
    """One after the other."""
    whole, a, b = P(), P(), P()
    if not call("cuGraphCreate", ctypes.byref(whole), ctypes.c_uint(0)):
        return None
    call("cuGraphAddChildGraphNode", ctypes.byref(a), whole, None, ctypes.c_size_t(0), P(first.raw_cuda_graph()))
    before = (P * 1)(a)
    call("cuGraphAddChildGraphNode", ctypes.byref(b), whole, before, ctypes.c_size_t(1), P(second.raw_cuda_graph()))
    return whole


captured(0, None, x)
torch.cuda.synchronize()
pool = torch.cuda.graph_pool_handle()
one, y = captured(1, pool, x)
two, z = captured(2, pool, y)
whole, instance = parent(one, two), P()
if problems or not call("cuGraphInstantiateWithFlags", ctypes.byref(instance), whole, ctypes.c_ulonglong(0)):
    done(False, "; ".join(problems))


def launch(value):
    global mistakes
    x.fill_(value)
    torch.cuda.synchronize()
    call("cuGraphLaunch", instance, P(outside))
    junk()  # beside it
    cuda.cuStreamSynchronize(P(outside))
    first = want(value, 1)
    mistakes += int((y != wrap32(first)).sum()) + int((z != wrap32(want(first, 2))).sum())


old = []
for turn in range(10):
    call("cuGraphUpload", instance, P(outside))
    for step in range(4):
        launch(10 * turn + step)
    # Captured again: the same nodes at other addresses. What was there before may go after the update.
    torch.cuda.synchronize()
    new_pool = torch.cuda.graph_pool_handle()
    one2, y2 = captured(1, new_pool, x)
    two2, z2 = captured(2, new_pool, y2)
    next_whole, how = parent(one2, two2), Update()
    status = cuda.cuGraphExecUpdate_v2(instance, next_whole, ctypes.byref(how))
    if status == 0:
        updates += 1
    else:  # the driver may refuse: then it is made anew
        cuda.cuGraphExecDestroy(instance)
        instance = P()
        call("cuGraphInstantiateWithFlags", ctypes.byref(instance), next_whole, ctypes.c_ulonglong(0))
        rebuilt += 1
    cuda.cuGraphDestroy(whole)
    whole, one, two, y, z = next_whole, one2, two2, y2, z2
    del one2, two2, y2, z2
    torch.cuda.empty_cache()
    junk()
    launch(7)
    if len(problems) > 3:
        break
cuda.cuGraphExecDestroy(instance)
cuda.cuGraphDestroy(whole)
del one, two, y, z
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = torch.cuda.memory_reserved() >> 20
destroy_stream(cuda, outside)
problems += adds_up()
if left > 64:
    problems.append(f"{left} MiB reserved in the end")
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or f"{updates} updates, {rebuilt} made anew, {mistakes} wrong elements")
