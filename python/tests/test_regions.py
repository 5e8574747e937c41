"""Regions that sleep and wake: their bytes, their scopes, and what fails on the way."""

import pytest

from regions_start import START


@pytest.mark.parametrize("keep", ["host", "disk", "compressed"])
def test_tensors_wake_at_their_addresses_with_their_bytes(bench, loader_file, keep):
    bench.passes(
        START
        + f"""
outside = make(5 * MIB, 1)
with gapless.region("weights", keep={keep!r}):
    tensors = [make(size, 2 + at) for at, size in enumerate([70 * MIB, 300, 3 * MIB, 1 << 20, 33 * MIB, 4096])]
dropped = tensors.pop(2)
del dropped
places = [tensor.data_ptr() for tensor in tensors]
live, used = torch.cuda.memory_allocated(), card.device_used()
slept = gapless.sleep("weights", verify=True)
assert slept.card_bytes >= 104 * MIB and slept.copied_bytes >= 104 * MIB, slept
assert card.device_used() <= used - 104 * MIB
assert torch.cuda.memory_allocated() == 5 * MIB and one("weights").asleep == live - 5 * MIB
assert holds(outside, 1) and not holds(tensors[0], 2)
assert gapless.is_asleep(tensors[0]) and gapless.is_asleep(tensors[0][5:]) and not gapless.is_asleep(outside)
# Others can have the memory meanwhile, and give it back.
other = make(90 * MIB, 9)
del other
woke = gapless.wake("weights")
assert woke.copied_bytes == slept.copied_bytes, (slept, woke)
assert places == [tensor.data_ptr() for tensor in tensors]
assert all(holds(tensor, seed) for tensor, seed in zip(tensors, [2, 3, 5, 6, 7]))
assert torch.cuda.memory_allocated() == live and one("weights").asleep == 0 and one("weights").host == 0
""",
        GAPLESS_SLEEP_DIR="/tmp",
        GAPLESS_LOADER=loader_file,
    )


def test_compressed_bytes_take_less_of_the_host(bench, loader_file):
    """bf16 and fp32 values with normal distributions, bytes without a pattern, zeros, and odd sizes. A part of a block
    is read, and tensors are freed while they sleep."""
    bench.passes(
        START
        + """
import random, struct
dice = random.Random(3)
normal = [struct.pack("<f", dice.gauss(0, 0.02)) for _ in range(1 << 16)]
kinds = {
    "bf16": b"".join(word[2:] for word in normal) * 24,
    "fp32": b"".join(word[:0] + b"\\0\\0" + word[2:] for word in normal) * 12,
    "random": dice.randbytes(3 * MIB + 11),
    "zeros": bytes(5 * MIB),
    "odd": dice.randbytes(7),
}
def put(data):
    tensor = torch.empty(len(data), dtype=torch.uint8, device="cuda")
    assert card.card_poke(tensor.data_ptr(), data, len(data)) == 0
    return tensor
def has(tensor, data):
    room = ctypes.create_string_buffer(len(data))
    assert card.cuMemcpyDtoHAsync_v2(room, tensor.data_ptr(), len(data), None) == 0
    return room.raw[: len(data)] == data
for name, most in (("bf16", 0.72), ("fp32", 0.5), ("random", 1.01), ("zeros", 0.01), ("odd", 1000)):
    with gapless.region(name, keep="compressed"):
        tensor = put(kinds[name])
    gapless.sleep(name, verify=name == "bf16")
    found = one(name)
    assert found.keep == "compressed" and 0 < found.host <= most * len(kinds[name]), (name, found)
    gapless.wake(name)
    assert has(tensor, kinds[name]) and one(name).host == 0, name
# Everything in one region, some of it freed meanwhile.
with gapless.region("all", keep="compressed"):
    tensors = {name: put(data) for name, data in kinds.items()}
for gone in ("zeros", None):
    gapless.sleep("all")
    from gapless import _regions
    part = tensors["bf16"][MIB + 3 : MIB + 1003]
    assert bytes(_regions.kept_bytes(part).numpy()) == kinds["bf16"][MIB + 3 : MIB + 1003]
    tensors.pop(gone, None)
    gapless.wake("all")
    assert all(has(tensor, kinds[name]) for name, tensor in tensors.items())
# Two that change places.
gapless.sleep("all")
with gapless.region("other", keep="compressed"):
    other = put(kinds["fp32"])
gapless.switch(sleep="other", wake="all")
gapless.switch(sleep="all", wake="other")
assert has(other, kinds["fp32"])
gapless.wake("all")
assert all(has(tensor, kinds[name]) for name, tensor in tensors.items())
""",
        GAPLESS_LOADER=loader_file,
    )


def test_a_compressed_region_needs_the_library_of_weights(bench, tmp_path):
    bench.passes(
        START
        + """
try:
    gapless.region("a", keep="compressed").__enter__()
    raise SystemExit("no error")
except gapless.GaplessError as error:
    assert "GAPLESS_LOADER" in str(error), error
with gapless.region("a"):
    make(MIB, 1)
""",
        GAPLESS_LOADER=str(tmp_path / "missing.so"),
    )


def test_many_cycles_keep_every_byte_and_hold_nothing_more(bench):
    bench.passes(
        START
        + """
import random
dice = random.Random(5)
with gapless.region("a"):
    a = {at: make(dice.randrange(1, 6 * MIB), at) for at in range(20)}
with gapless.region("b"):
    b = {at: make(dice.randrange(1, 6 * MIB), at) for at in range(20)}
pinned, held = None, []
for cycle in range(30):
    gapless.sleep("a")
    with gapless.region("b"):
        gone = dice.choice(list(b))
        del b[gone]
        b[gone] = make(dice.randrange(1, 6 * MIB), gone)
    if cycle % 3 == 0:
        gone = dice.choice(list(a))
        del a[gone]          # while it sleeps
    gapless.switch(sleep="b", wake="a")
    assert all(holds(tensor, seed) for seed, tensor in a.items()), cycle
    gapless.wake("b")
    assert all(holds(tensor, seed) for seed, tensor in b.items()), cycle
    held.append(torch.cuda.memory_reserved())
    if cycle == 10:
        pinned = card.card_pinned()
assert card.card_pinned() == pinned, (card.card_pinned(), pinned)
live = torch.cuda.memory_allocated()
assert held[-1] < live + 40 * MIB, (held[-1], live)
"""
    )


def test_waking_without_room_raises_and_changes_nothing(bench):
    bench.passes(
        START
        + """
with gapless.region("weights"):
    tensor = make(700 * MIB, 1)
gapless.sleep("weights")
other = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
for _ in range(2):
    try:
        gapless.wake("weights")
        raise SystemExit("it woke")
    except torch.OutOfMemoryError as error:
        assert "weights" in str(error) and "Nothing has changed" in str(error), error
assert one("weights").asleep == 700 * MIB
del other
gapless.wake("weights")
assert holds(tensor, 1)
""",
        STANDIN_CAPACITY=str(1 << 30),
    )


def test_a_copy_that_fails_leaves_the_region_as_it_was(bench):
    bench.passes(
        START
        + """
with gapless.region("weights"):
    tensors = [make((3 + at) * MIB, at) for at in range(6)]
    hole = make(2 * MIB, 9)
    last = make(2 * MIB, 10)
del hole
for at in range(3):
    card.card_fail_copy(at)
    try:
        gapless.sleep("weights", verify=True)
        failed = False
    except gapless.GaplessError as error:
        assert "awake" in str(error), error
        failed = True
    card.card_fail_copy(-1)
    if failed:
        assert one("weights").asleep == 0
        assert all(holds(tensor, seed) for seed, tensor in enumerate(tensors)) and holds(last, 10)
        gapless.sleep("weights", verify=True)
    card.card_fail_copy(at)
    try:
        gapless.wake("weights")
        failed = False
    except gapless.GaplessError as error:
        assert "sleeps on" in str(error), error
        failed = True
    card.card_fail_copy(-1)
    if failed:
        assert one("weights").asleep > 0 and one("weights").held == 0
        gapless.wake("weights")
    assert all(holds(tensor, seed) for seed, tensor in enumerate(tensors)) and holds(last, 10), at
"""
    )


def test_what_sleeps_is_given_back_while_a_history_is_recorded(bench):
    bench.passes(
        START
        + """
torch.cuda.memory._record_memory_history(max_entries=1000)
with gapless.region("weights"):
    tensors = [make(4 * MIB, at) for at in range(3)]
gapless.sleep("weights")
del tensors[1]
assert one("weights").asleep == 8 * MIB
gapless.wake("weights")
assert holds(tensors[0], 0) and holds(tensors[1], 2)
"""
    )


def test_a_host_without_memory_leaves_the_region_awake(bench):
    bench.passes(
        START
        + """
with gapless.region("weights"):
    tensor = make(90 * MIB, 1)
try:
    gapless.sleep("weights")
    raise SystemExit("it slept")
except gapless.GaplessError as error:
    assert "pinned" in str(error) and "It is awake" in str(error), error
assert holds(tensor, 1)
with gapless.region("weights", keep="discard"):
    pass
gapless.sleep("weights")
gapless.wake("weights")
assert tensor.data_ptr() and not gapless.is_asleep(tensor)
""",
        STANDIN_HOST=str(64 << 20),
    )


def test_a_graph_sleeps_with_the_region_that_it_was_captured_in(bench):
    bench.passes(
        START
        + """
with gapless.region("engine"):
    static = make(4 * MIB, 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")
        scratch = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda")
at = scratch.data_ptr()
del scratch
card.card_poke(inside.data_ptr(), pattern(2, 6 * MIB), 6 * MIB)
card.card_poke(at, pattern(3, 8 * MIB), 8 * MIB)
used = card.device_used()
gapless.sleep("engine")
assert card.device_used() <= used - 18 * MIB
gapless.wake("engine")
assert holds(static, 1) and holds(inside, 2)
# Graphs use what is free in their pool as well.
room = ctypes.create_string_buffer(8 * MIB)
assert card.cuMemcpyDtoHAsync_v2(room, at, 8 * MIB, None) == 0 and room.raw[: 8 * MIB] == pattern(3, 8 * MIB)
assert card.device_used() == used
"""
    )


def test_scopes_nest_and_end(bench):
    bench.passes(
        START
        + """
import threading
with gapless.region("outer"):
    a = make(3 * MIB, 1)
    with gapless.region("inner", keep="discard"):
        b = make(3 * MIB, 2)
        with gapless.no_region():
            c = make(3 * MIB, 3)
    made = []
    thread = threading.Thread(target=lambda: made.append(make(3 * MIB, 4)))
    thread.start()
    thread.join()
after = make(3 * MIB, 5)

@gapless.region("inner", keep="discard")
def in_region():
    return make(3 * MIB, 6)

d = in_region()
gapless.sleep("outer")
asleep = [gapless.is_asleep(tensor) for tensor in (a, b, c, made[0], after, d)]
assert asleep == [True, False, False, True, False, False], asleep
gapless.sleep("inner")
assert gapless.is_asleep(b) and gapless.is_asleep(d) and holds(after, 5) and holds(c, 3)
gapless.wake("outer")
gapless.wake("inner")
assert holds(a, 1) and holds(made[0], 4)
"""
    )


def test_what_is_wrong_is_said(bench):
    bench.passes(
        START
        + """
def says(call, *texts):
    try:
        call()
    except (gapless.GaplessError, gapless.OptionError) as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise SystemExit("nothing was said")

says(lambda: gapless.sleep("weights"), "no region", "weights")
says(lambda: gapless.region("a b"), "invalid name")
says(lambda: gapless.region("a", keep="cloud"), "invalid keep", "discard")
with gapless.region("weights"):
    tensor = make(3 * MIB, 1)
says(lambda: gapless.wake("weights"), "awake already")
says(lambda: gapless.sleep("weight"), "weights")
gapless.sleep("weights")
says(lambda: gapless.sleep("weights"), "sleeps already")
says(lambda: gapless.switch(sleep="weights", wake="weights"), "must")
says(lambda: gapless.prepare_host("much"), "invalid size")
import torch.multiprocessing.reductions
try:
    tensor.untyped_storage()._share_cuda_()
    raise SystemExit("it was shared")
except RuntimeError as error:
    assert "sleeps" in str(error), error
del tensor
gapless.wake("weights")
assert one("weights").live == 0
"""
    )


def test_a_module_moves_into_a_region(bench):
    bench.passes(
        START
        + """
model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300)).cuda()
model[0].tied = model[0].weight
parameters = [id(parameter) for parameter in model.parameters()]
moved = gapless.move_to_region(model, "weights")
assert moved >= 300 * 300 * 4 and [id(parameter) for parameter in model.parameters()] == parameters
assert model[0].tied is model[0].weight
gapless.sleep("weights")
assert all(gapless.is_asleep(tensor) for tensor in [*model.parameters(), *model.buffers()])
gapless.wake("weights")
"""
    )


def test_prepared_host_memory_is_used(bench):
    bench.passes(
        START
        + """
with gapless.region("weights", prepare=True):
    tensor = make(100 * MIB, 1)
pinned = card.card_pinned()
assert pinned >= 100 * MIB
gapless.sleep("weights")
assert card.card_pinned() == pinned
gapless.wake("weights")
assert card.card_pinned() == pinned and holds(tensor, 1)
"""
    )


def test_a_failed_request_names_the_region_that_could_sleep(bench):
    bench.passes(
        START
        + """
with gapless.region("weights"):
    weights = make(500 * MIB, 1)
with gapless.region("small"):
    small = make(30 * MIB, 2)
try:
    torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
    raise SystemExit("it was served")
except torch.OutOfMemoryError as error:
    assert 'gapless.sleep("weights")' in str(error) and "of region weights could sleep" in str(error), error
gapless.sleep("weights")
other = torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
""",
        STANDIN_CAPACITY=str(1 << 30),
    )


def test_a_region_that_holds_nothing_sleeps_and_wakes(bench):
    bench.passes(
        START
        + """
with gapless.region("empty"):
    pass
with gapless.region("full"):
    full = make(3 * MIB, 1)
for _ in range(2):
    gapless.sleep("empty")
    try:
        gapless.sleep("empty")
        raise SystemExit("it slept twice")
    except RuntimeError as error:
        assert "sleeps already" in str(error), error
    gapless.switch(sleep="full", wake="empty")
    assert gapless.is_asleep(full)
    gapless.switch(sleep="empty", wake="full")
    gapless.wake("empty")
    try:
        gapless.wake("empty")
        raise SystemExit("it woke twice")
    except RuntimeError as error:
        assert "awake already" in str(error), error
    assert holds(full, 1)
""",
    )
