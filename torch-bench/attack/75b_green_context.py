"""Streams of green contexts, which own a part of the card's processors: memory that is freed there while kernels still
run, and memory of other streams that they read, is not used again before they are done."""
from common import *

g = start(limit=640 * MIB)
try:
    from torch.cuda.green_contexts import SUPPORTED, GreenContext

    if not SUPPORTED:
        skip("this torch has no green contexts")
    green = GreenContext.create(32, 0)
except (ImportError, RuntimeError, AttributeError) as error:
    skip(f"no green contexts here: {str(error).strip().splitlines()[:1]}")
side, main, mistakes, r = torch.cuda.Stream(), torch.cuda.current_stream(), 0, rng(75)
int(wrong(fill(ints(MIB), 1), 1))
torch.cuda.synchronize()
handles = set()
for turn in range(24):
    mark = 1000 * turn
    if turn % 2 == 0:
        # Allocated, read late and freed in the green context; the rest of the card wants the memory meanwhile.
        green.set_context()
        handles.add(torch.cuda.current_stream().cuda_stream)
        x = fill(ints(200 * MIB), mark)
        y = ints(200 * MIB)
        busy(40)
        y.copy_(x)
        ended = torch.cuda.current_stream().record_event()
        del x
        green.pop_context()
        with torch.cuda.stream(side):
            z = [ints(size).fill_(-1) for size in (120 * MIB, 100 * MIB)]
            del z
    else:
        # Of a side stream, read in the green context.
        with torch.cuda.stream(side):
            x = fill(ints(200 * MIB), mark)
            ready = side.record_event()
        green.set_context()
        inside = torch.cuda.current_stream()
        inside.wait_event(ready)
        y = ints(200 * MIB)
        busy(40)
        y.copy_(x)
        ended = inside.record_event()
        x.record_stream(inside)
        del x
        green.pop_context()
        with torch.cuda.stream(side):
            z = [ints(size).fill_(-1) for size in (60 * MIB, 160 * MIB)]
            del z
    main.wait_event(ended)
    mistakes += int(wrong(y, mark))
    y.record_stream(main)
    del y
    if turn % 6 == 5:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
torch.cuda.synchronize()
problems = adds_up()
ok = mistakes == 0 and not problems
done(ok, f"24 turns, {len(handles)} streams of green contexts, {mistakes} wrong elements {problems[:1]}")
