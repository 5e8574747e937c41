"""Checked mode: a program that misuses memory gets a message with the lines of both sides; other programs get none.

The card of torch-bench/python stores what the driver fills; `card_poke` writes as a kernel would.
"""

import sys

import pytest

START = """\
import ctypes, gapless, torch
assert gapless.enable({options})
card = ctypes.CDLL("libcuda.so.1")
library = ctypes.CDLL(__import__("os").environ["GAPLESS_LIBRARY"])
library.gapless_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
MIB = 1 << 20
def of(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
def poke(at, text=b"\\x00\\x00\\x80\\x3f"):
    assert card.card_poke(ctypes.c_uint64(at), text, ctypes.c_size_t(len(text))) == 0
def free(at):
    library.gapless_free(at, 0, 0, None)
"""
LINES = START.count("\n")
# The lines at which the helpers allocate and free.
OF = f"train.py:{START[: START.index('    return torch.empty')].count(chr(10)) + 1} of"
FREE = f"train.py:{LINES} free"


def ran(real, folder, program, options="check=True", **environment):
    """Runs a program of its own file, so that its lines have a name; line 1 is the first of `program`."""
    path = folder / "train.py"
    path.write_text(START.replace("{options}", options) + program)
    return real.start([sys.executable, path], folder, cold=True, **environment)


def line(number, function="<module>"):
    return f"train.py:{LINES + number} {function}"


def said(text):
    """The parts of a finding by their labels."""
    found, label = {}, None
    for words in text.splitlines():
        if words.startswith("  ") and not words.startswith("   "):
            label, _, words = words.strip().partition(":")
        if words.startswith("  ") or label:
            found[label] = (found.get(label, "") + " " + words.strip()).strip()
    return found


def test_a_write_after_a_free_is_told_with_both_lines(real, tmp_path):
    program = """\
x = of(4)
at = x.data_ptr()
del x
poke(at + 4096)
try:
    y = of(4)
except RuntimeError as error:
    assert not isinstance(error, torch.OutOfMemoryError)
    print(error)
y = of(4)
assert gapless.stats()["gapless.check.findings"] == 1
"""
    done = ran(real, tmp_path, program)
    assert done.code == 0, done.out + done.err
    assert done.out.startswith("gapless check: freed memory was written to before it was handed out again."), done.out
    parts = said(done.out)
    assert parts["allocated at"] == f"{OF}, from {line(1)}"
    assert parts["freed at"] == line(3)
    assert parts["asked for by"] == f"{OF}, from {line(6)}"
    assert "byte 4096 of the block of 4.00 MiB" in parts["where"] and "on GPU 0" in parts["where"]
    assert parts["found"] == "0x3f800000 where 0x7fde7fde was put; 4 B changed"
    assert "please report" in parts["what to do"]


def test_a_write_through_another_address_of_the_same_memory_is_found(real, tmp_path):
    # The card has room for one block of 48 MiB: it is made of the pages of two smaller ones, side by side.
    program = """\
kept = [of(16) for _ in range(7)]
at = kept[2].data_ptr()
del kept[::2]
wide = of(48)
inside = wide.data_ptr()
assert gapless.stats()["gapless.windows_made"] == 1
del wide
poke(inside + 40 * MIB)
try:
    kept += [of(16) for _ in range(4)]
except RuntimeError as error:
    print(error)
"""
    done = ran(real, tmp_path, program, STANDIN_CAPACITY=str(128 << 20))
    assert done.code == 0, done.out + done.err
    parts = said(done.out)
    assert parts["freed at"] == line(7)
    assert parts["had it before"].startswith("the block of 48.0 MiB"), parts
    assert "the block of 16.0 MiB" in parts["where"]


def test_a_second_free_names_both_frees_and_is_raised_by_the_next_request(real, tmp_path):
    program = """\
x = torch.cuda.caching_allocator_alloc(1000)
free(x)
def again():
    free(x)
again()
print("still there")
try:
    of(1)
except RuntimeError as error:
    print(error)
of(1)
"""
    done = ran(real, tmp_path, program)
    assert done.code == 0, done.out + done.err
    assert done.out.startswith("still there\ngapless check: a block was freed twice."), done.out
    assert "gapless check: a block was freed twice." in done.err
    parts = said(done.out)
    assert parts["allocated at"] == line(1)
    assert parts["freed at"] == f"{FREE}, from {line(2)}"
    assert parts["freed again at"] == f"{FREE}, from {line(4, 'again')}, from {line(5)}"
    assert "1 finding: see above" in done.err


def test_a_delete_that_may_raise_says_it_itself(real, tmp_path):
    program = """\
x = torch.cuda.caching_allocator_alloc(1000)
torch.cuda.caching_allocator_delete(x)
try:
    torch.cuda.caching_allocator_delete(x)
except RuntimeError as error:
    print(error)
of(1)
"""
    done = ran(real, tmp_path, program)
    assert done.code == 0, done.out + done.err
    assert done.out.startswith("gapless check: a block was freed twice."), done.out
    parts = said(done.out)
    assert (parts["freed at"], parts["freed again at"]) == (line(2), line(4))


def test_a_free_of_what_was_never_handed_out_is_told(real, tmp_path):
    program = """\
x = of(1)
free(x.data_ptr() + 512)
free(0x12340000)
for _ in range(2):
    try:
        of(1)
    except RuntimeError as error:
        print(error)
"""
    done = ran(real, tmp_path, program)
    assert done.code == 0, done.out + done.err
    assert "an address inside of a block was freed" in done.out
    assert "an address was freed that Gapless never handed out" in done.err and "0x12340000" in done.err
    assert said(done.out)["allocated at"] == f"{OF}, from {line(1)}"


TRAINING = """\
model = torch.nn.Sequential(torch.nn.LayerNorm(4096), torch.nn.GELU()).cuda()
optimizer = torch.optim.AdamW(model.parameters())
side = torch.cuda.Stream()
for step in range(6):
    x = torch.randn(64 + 8 * step, 4096, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
    x.record_stream(side)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    kept = [of(mib) for mib in (3, 17, 5)]
    del kept[1]
    if step == 3:
        torch.cuda.empty_cache()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = torch.zeros(5 * MIB, device="cuda") + 1
    of(3)
graph.replay()
poke(z.data_ptr())
del z, graph
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    w = of(3)
del w
kept = [of(mib) for mib in (2, 20, 4)]
stats = gapless.stats()
assert stats["gapless.check.findings"] == 0
assert stats["gapless.check.filled_bytes"] > 50 * MIB and stats["gapless.check.verified_bytes"] > 20 * MIB, stats
print("fine")
"""


@pytest.mark.parametrize("overlay", ["1", "0"])
def test_a_program_that_does_nothing_wrong_is_left_alone(real, tmp_path, overlay):
    if overlay == "0":
        program = TRAINING.replace("pool = torch.cuda.MemPool()\nwith torch.cuda.use_mem_pool(pool):\n    w = of(3)\ndel w\n", "")
    else:
        program = TRAINING
    done = ran(real, tmp_path, program, GAPLESS_OVERLAY=overlay)
    assert (done.code, done.out) == (0, "fine\n"), done.out + done.err
    first, last = done.err.splitlines()
    assert first.startswith("gapless: checked mode is on (GAPLESS_CHECK).") and "slower" in first
    assert last.startswith("gapless check: cuda:0 ") and last.endswith("; nothing was wrong")


def test_memory_that_is_short_is_still_memory_that_is_short(real, tmp_path):
    program = """\
kept = [of(20) for _ in range(5)]
try:
    of(64)
except torch.OutOfMemoryError as error:
    print("short")
del kept
of(64)
"""
    done = ran(real, tmp_path, program, STANDIN_CAPACITY=str(128 << 20))
    assert (done.code, done.out) == (0, "short\n"), done.out + done.err


def test_work_that_does_not_end_is_not_waited_for_forever(real, tmp_path):
    program = """\
import os, tempfile
x, y = of(4), of(4)
# Work that is not done while this file is there.
os.environ["STANDIN_STALL"] = work = tempfile.mkstemp()[1]
del x, y
os.unlink(work)
assert gapless.stats()["gapless.check.skipped_bytes"] == 8 * MIB
of(4)
"""
    done = ran(real, tmp_path, program)
    assert done.code == 0, done.out + done.err
    assert "8.00 MiB skipped; nothing was wrong" in done.err


def test_a_part_of_each_block_can_be_enough(real, tmp_path):
    program = """\
x = of(4)
at = x.data_ptr()
del x
assert gapless.stats()["gapless.check.filled_bytes"] == 1 * MIB
poke(at + 2 * MIB)
x = of(4)
del x
poke(at + 4 * MIB - 4)
try:
    of(4)
except RuntimeError as error:
    print(error)
"""
    done = ran(real, tmp_path, program, options="check=True, check_bytes='1MiB'")
    assert done.code == 0, done.out + done.err
    assert "byte 4194300 of the block" in done.out


def test_without_the_option_nothing_is_said_or_counted(real, tmp_path):
    done = ran(real, tmp_path, "of(1)\nassert not [k for k in gapless.stats() if 'check' in k]\n", options="")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_run_takes_a_flag_for_it(real, command, tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import torch\ntorch.empty(5, device='cuda')\n")
    done = real.start([command, "run", "--check", "--", sys.executable, path], tmp_path, GAPLESS_PROGRAM=None)
    assert done.code == 0, done.out + done.err
    assert "checked mode is on" in done.err
