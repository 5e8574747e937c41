"""Graphs that are kept and instantiated again or launched through the driver, events that leave a capture, and graphs
that are reset and captured anew give the right values while memory comes and goes."""
import ctypes
import tempfile

from common import *

g = start(limit=4 * GIB)
cuda = driver()
n, r, mistakes, problems = 1 << 20, rng(97), 0, []
x = torch.zeros(n, dtype=torch.int32, device="cuda")
side, other = torch.cuda.Stream(), torch.cuda.Stream()
P = ctypes.c_void_p


def body(k):
    y = x + k
    for _ in range(4):
        y = y * 2 - x
    return y


def want(value, k):
    y = value + k
    for _ in range(4):
        y = y * 2 - value
    return y


def junk():
    kept = [ints(log_uniform(r, 512, 24 * MIB)).fill_(-1) for _ in range(6)]
    del kept
    torch.cuda.empty_cache()


def launch(raw, y):
    instance, stream = P(), new_stream(cuda)
    if cuda.cuGraphInstantiateWithFlags(ctypes.byref(instance), P(raw), ctypes.c_ulonglong(0)):
        problems.append("the driver does not instantiate the kept graph")
        return
    x.fill_(70 + turn)
    y.zero_()
    torch.cuda.synchronize()
    if cuda.cuGraphLaunch(instance, P(stream)):
        problems.append("the driver does not launch it")
    cuda.cuStreamSynchronize(P(stream))
    cuda.cuGraphExecDestroy(instance)
    destroy_stream(cuda, stream)


has_graphs = hasattr(cuda, "cuGraphLaunch")
body(0)
torch.cuda.synchronize()
for turn in range(6):
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=side):
        y = body(turn)
    raw = graph.raw_cuda_graph()
    count = ctypes.c_size_t(0)
    if has_graphs and cuda.cuGraphGetNodes(P(raw), None, ctypes.byref(count)) or has_graphs and count.value < 5:
        problems.append(f"the kept graph has {count.value} nodes")
    graph.instantiate()
    for step in range(4):
        x.fill_(step)
        graph.replay()
        mistakes += int((y != want(step, turn)).sum())
        if step == 1:
            junk()
            graph.instantiate()  # again
    # The driver's own instance of it, on a stream that torch does not own.
    if has_graphs:
        launch(raw, y)
        mistakes += int((y != want(70 + turn, turn)).sum())
    # An event that is recorded by the replay and waited for outside of it, by another stream.
    ready, again = torch.cuda.Event(external=True), torch.cuda.CUDAGraph()
    with torch.cuda.graph(again, pool=graph.pool(), stream=side):
        z = body(turn + 1)
        ready.record()
        late = z + 1
    for step in range(4):
        x.fill_(step)
        torch.cuda.synchronize()
        again.replay()
        other.wait_event(ready)
        with torch.cuda.stream(other):
            copy = z.clone()  # behind the event alone
            mistakes += int((copy != want(step, turn + 1)).sum())
            del copy
        torch.cuda.synchronize()
        mistakes += int((late != want(step, turn + 1) + 1).sum())
        junk()
    # Reset, and captured anew with other sizes in the same object.
    del y, z, late
    graph.reset()
    again.reset()
    junk()
    with torch.cuda.graph(again, stream=side):
        z = body(turn + 2)
    x.fill_(5)
    again.replay()
    mistakes += int((z != want(5, turn + 2)).sum())
    with tempfile.TemporaryDirectory() as folder:
        again.reset()
        again.enable_debug_mode()
        with torch.cuda.graph(again, stream=side):
            z = body(turn)
        again.debug_dump(os.path.join(folder, "graph.dot"))
    del z, graph, again, ready
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
# Copies and sets of blocks that were put together of many pieces, as nodes of a graph.
pieces = [ints(30 * MIB) for _ in range(50)]
torch.cuda.synchronize()
del pieces[::2]
large, second = ints(500 * MIB), ints(100 * MIB)
host = torch.empty(large.shape, dtype=torch.int32, pin_memory=True)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, stream=side):
    inner = large.clone()
    host.copy_(large, non_blocking=True)
    second.copy_(large[: second.numel()])
    large.zero_()
    large[1000 : 1000 + second.numel()].copy_(second)
for step in range(3):
    fill(large, step)
    host.zero_()
    graph.replay()
    torch.cuda.synchronize()
    mistakes += int(wrong(inner, step)) + int(wrong(second, step))
    mistakes += int(wrong(large[1000 : 1000 + second.numel()], step)) + int((large[:1000] != 0).sum())
    mistakes += int((large[1000 + second.numel() :] != 0).sum())
    mistakes += int(not torch.equal(host, torch.arange(step, step + host.numel(), dtype=torch.int32)))
del graph, inner, large, second, pieces
torch.cuda.synchronize()
torch.cuda.empty_cache()
left = torch.cuda.memory_reserved() >> 20
problems += adds_up()
if left > 64:
    problems.append(f"{left} MiB reserved in the end")
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or f"six turns, {mistakes} wrong elements, {left} MiB left")
