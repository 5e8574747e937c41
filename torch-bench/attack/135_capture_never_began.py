"""A capture that never begins, since its stream is captured already by other means; then that stream is destroyed.
Later requests are served, and the allocator does not ask the driver about a stream that is gone."""
import ctypes

from common import *

g = start(limit=2 * GIB)
cuda, kept, problems, mistakes, r = driver(), [], [], 0, rng(135)
try:
    begin, end = cuda.cuStreamBeginCapture_v2, cuda.cuStreamEndCapture
except AttributeError:
    skip("this driver has no captures")
RELAXED = 2
int(wrong(fill(ints(MIB), 1), 1))
torch.cuda.synchronize()
for turn in range(4):
    handle, raw = new_stream(cuda), ctypes.c_void_p()
    graph = torch.cuda.CUDAGraph()
    # torch's own table keeps a pointer to a graph whose capture failed: it stays for good.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))
    kept.append(graph)
    if begin(ctypes.c_void_p(handle), ctypes.c_int(RELAXED)) != 0:
        problems.append("the driver begins no capture")
    try:
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            graph.capture_begin(capture_error_mode="relaxed")
        problems.append("a stream that is captured was captured again")
    except RuntimeError:
        pass
    end(ctypes.c_void_p(handle), ctypes.byref(raw))
    if raw.value:
        cuda.cuGraphDestroy(raw)
    if destroy_stream(cuda, handle) != 0:
        problems.append("the stream cannot be destroyed")
    # Other streams get its handle.
    others = [new_stream(cuda) for _ in range(turn)]
    live = []
    for step in range(60):
        mark = r.randrange(1 << 18)
        live.append((fill(ints(log_uniform(r, 512, 20 * MIB)), mark), mark))
        if len(live) > 10:
            x, mark = live.pop(r.randrange(10))
            mistakes += int(wrong(x, mark))
            del x
    mistakes += sum(int(wrong(x, mark)) for x, mark in live)
    del live
    problems += adds_up()
    for other in others:
        destroy_stream(cuda, other)
torch.cuda.synchronize()
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"four captures that never began, {mistakes} wrong elements")
