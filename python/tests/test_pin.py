"""Pinned tensors on the exact host pool, over the stand-in card."""

import pytest

START = """
import collections, ctypes, gc, os, tempfile, time, torch, gapless
card = ctypes.CDLL("libcuda.so.1")
def figures():
    found = (ctypes.c_uint64 * 6)()
    gapless._session._on().optional("gapless_host_stats", found)
    return {"live": found[0], "allocated": found[1]}
def waiting():
    return gapless._session._on().optional("gapless_pinned_look")
def over():
    # A thread waits for the card's work, and tells.
    until = time.monotonic() + 60
    while waiting() and time.monotonic() < until:
        time.sleep(0.001)
    return waiting()
"""


def test_values_shapes_and_exact_sizes(real):
    lines = real.passes(
        START
        + """
gapless.enable()
x = torch.arange(5_000_000, dtype=torch.float32).view(5000, 1000)
for tensor in (x, x.t(), x[::2, 3:7], torch.tensor(5, dtype=torch.int64), torch.empty(0, 3)):
    pinned = gapless.pin_memory(tensor)
    assert torch.equal(pinned, tensor) and pinned.dtype == tensor.dtype and pinned.shape == tensor.shape
del pinned
over()
a = gapless.pin_memory(x)
print(figures()["live"], figures()["allocated"] - figures()["live"] < 4096)
view = a[3]
del a
gc.collect()
print(figures()["live"], float(view[1]))
del view
over()
print(figures()["live"])
Point = collections.namedtuple("Point", "a b")
batch = gapless.pin_batch({"x": [torch.ones(3), "word"], "p": Point(torch.zeros(2), 7), "t": (torch.ones(1),)})
print(type(batch["p"]).__name__, batch["x"][1], batch["p"].b, torch.equal(batch["t"][0], torch.ones(1)), figures()["live"])
for bad in (5, torch.ones(3, device="cuda")):
    try:
        gapless.pin_memory(bad)
    except gapless.GaplessError as error:
        print(error)
"""
    ).lines()
    assert lines[:3] == ["20000000 True", "20000000 3001.0", "0"]
    assert lines[3] == "Point word 7 True 24"
    assert lines[4].startswith("a int cannot be pinned") and lines[5].startswith("a tensor on cuda:0")


def test_memory_is_not_used_again_before_queued_work_is_done(real):
    lines = real.passes(
        START
        + """
gapless.enable()
torch.empty(1, device="cuda")
a = gapless.pin_memory(torch.ones(1 << 20))
# Work that is not done while this file is there.
os.environ["STANDIN_STALL"] = work = tempfile.mkstemp()[1]
del a
print(figures()["live"] >> 20)
b = gapless.pin_memory(torch.ones(1 << 20))
print(figures()["live"] >> 20)
os.unlink(work)
print(over(), figures()["live"] >> 20)
"""
    ).lines()
    assert lines == ["4", "8", "0 4"]


@pytest.mark.parametrize("at", range(3))
def test_a_failed_fence_waits_instead(real, at):
    lines = real.passes(
        START
        + f"""
gapless.enable()
torch.empty(1, device="cuda")
card.card_fail_in.argtypes = [ctypes.c_int64]
a = gapless.pin_memory(torch.ones(1 << 18))
card.card_fail_in({at})
del a
card.card_fail_in(-1)
print(over(), figures()["live"])
"""
    ).lines()
    assert lines == ["0 0"]
