"""Streams of the card's own context are used and destroyed. Then streams are made in a green context, and the driver
gives some of them the same handles. Memory of such a stream is not used again before its work is done, though the
handle was another stream's before."""
import ctypes

from common import *

g = start(limit=640 * MIB)
try:
    from torch.cuda.green_contexts import SUPPORTED, GreenContext

    if not SUPPORTED:
        skip("this torch has no green contexts")
    green = GreenContext.create(32, 0)
except (ImportError, RuntimeError, AttributeError) as error:
    skip(f"no green contexts here: {str(error).strip().splitlines()[:1]}")
cuda, side, main, mistakes = driver(), torch.cuda.Stream(), torch.cuda.current_stream(), 0
with torch.cuda.stream(side):
    int(wrong(fill(ints(MIB), 1), 1))
busy(0.1)
torch.cuda.synchronize()


def used_before(count):
    """Handles of streams that torch asked memory for, and that are gone."""
    handles = [new_stream(cuda) for _ in range(count)]
    for handle in handles:
        with torch.cuda.stream(torch.cuda.ExternalStream(handle)):
            x = fill(ints(64 * KIB), 5)
        del x
    torch.cuda.synchronize()
    for handle in handles:
        destroy_stream(cuda, handle)
    return set(handles)


def in_green(count):
    """Handles of new streams of the green context."""
    green.set_context()
    made = []
    for _ in range(count):
        handle = ctypes.c_void_p()
        if cuda.cuStreamCreate(ctypes.byref(handle), ctypes.c_uint(1)) == 0:
            made.append(handle.value)
    green.pop_context()
    return made


again = []
for _ in range(6):
    before = used_before(32)
    made = in_green(32)
    again = [handle for handle in made if handle in before]
    if again:
        break
if not again:
    skip("no handle came back")
torch.cuda.empty_cache()
for turn in range(12):
    handle, mark = again[turn % len(again)], 1000 * turn
    inside = torch.cuda.ExternalStream(handle)
    # Whole blocks, so that the rest of the card has to ask for them.
    green.set_context()
    with torch.cuda.stream(inside):
        x = fill(ints(200 * MIB), mark)
        y = ints(200 * MIB)
        busy(40)
        y.copy_(x)
        ended = inside.record_event()
        del x
    green.pop_context()
    with torch.cuda.stream(side):
        z = [ints(size).fill_(-1) for size in (120 * MIB, 100 * MIB)]
        del z
    main.wait_event(ended)
    mistakes += int(wrong(y, mark))
    torch.cuda.synchronize()
    del y
    if turn % 4 == 3:
        torch.cuda.empty_cache()
torch.cuda.synchronize()
problems = adds_up()
done(mistakes == 0 and not problems, f"12 turns, {len(again)} handles came back, {mistakes} wrong elements {problems[:1]}")
