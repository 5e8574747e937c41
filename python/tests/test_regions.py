"""Regions that sleep and wake. Bytes are those of the stand-in card, which are gone with the pages that held them."""

import pytest

START = """
import ctypes, os, sys
import torch, gapless
gapless.enable()
card = ctypes.CDLL("libcuda.so.1")
card.card_poke.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
card.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
card.device_used.restype = ctypes.c_uint64
card.card_pinned.restype = ctypes.c_size_t
MIB = 1 << 20

def pattern(seed, size):
    return (bytes((seed * 37 + i * 11) % 251 for i in range(251)) * (size // 251 + 1))[:size]

def make(size, seed):
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    assert card.card_poke(tensor.data_ptr(), pattern(seed, size), size) == 0
    return tensor

def holds(tensor, seed):
    size = tensor.numel()
    room = ctypes.create_string_buffer(size)
    code = card.cuMemcpyDtoHAsync_v2(room, tensor.data_ptr(), size, None)
    return code == 0 and room.raw[:size] == pattern(seed, size)

def one(name):
    return next(found for found in gapless.regions() if found.name == name)

def places():
    # Addresses and sizes of what is awake.
    blocks = (block for segment in torch.cuda.memory_snapshot() for block in segment["blocks"])
    return {(block["address"], block["size"]) for block in blocks if block["state"] == "active_allocated"}
"""


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


@pytest.mark.parametrize("target", ["saver", "_Below(saver)"], ids=["own", "below_the_package"])
def test_torch_memory_savers_interface(bench, target):
    """Gapless's own object, and what the package's object passes its calls on to."""
    bench.passes(
        START
        + f"""
from gapless.integrations.torch_memory_saver import _Below, torch_memory_saver as saver
saver = {target}
"""
        + """
with saver.region(tag="kv cache"):
    cache = make(40 * MIB, 1)
with saver.region(tag="weights", enable_cpu_backup=True):
    weights = make(30 * MIB, 2)
    with saver.disable():
        outside = make(3 * MIB, 3)
    graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="weights", enable_cpu_backup=True):
    inside = torch.empty(6 * MIB, dtype=torch.uint8, device="cuda")
card.card_poke(inside.data_ptr(), pattern(4, 6 * MIB), 6 * MIB)
places, used = [tensor.data_ptr() for tensor in (cache, weights, inside)], card.device_used()
assert saver.get_cpu_backup(weights) is None
saver.pause("kv cache")
assert used - 44 * MIB <= card.device_used() <= used - 40 * MIB and holds(weights, 2)
saver.pause("kv cache")
saver.pause()
assert card.device_used() <= used - 76 * MIB and holds(outside, 3)
backup = saver.get_cpu_backup(weights[MIB:])
assert bytes(backup.numpy().tobytes()) == pattern(2, 30 * MIB)[MIB:]
assert saver.get_cpu_backup(cache) is None
saver.resume("weights")
assert holds(weights, 2) and holds(inside, 4) and gapless.is_asleep(cache)
saver.resume()
assert places == [tensor.data_ptr() for tensor in (cache, weights, inside)] and not gapless.is_asleep(cache)
"""
    )


def test_vllms_interface(bench):
    bench.passes(
        START
        + """
from gapless.integrations.vllm import CuMemAllocator
pool = CuMemAllocator.get_instance()
assert pool is CuMemAllocator.get_instance()
with pool.use_memory_pool(tag="weights"):
    weights = make(30 * MIB, 1)
with pool.use_memory_pool("kv_cache"):
    cache = make(40 * MIB, 2)
assert 70 * MIB <= pool.get_current_usage() <= 74 * MIB
pool.sleep(offload_tags=("weights",))
assert pool.get_current_usage() == 0
pool.wake_up(["weights"])
assert holds(weights, 1) and gapless.is_asleep(cache)
pool.wake_up()
assert not holds(cache, 2) and cache.data_ptr()
pool.sleep(offload_tags=tuple())
pool.wake_up()
assert not holds(weights, 1)
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


def test_a_torch_function_that_touches_a_sleeping_tensor_raises(bench):
    bench.passes(
        START
        + """
from torch.utils import _python_dispatch as dispatch

def raises(call, *texts):
    try:
        call()
    except gapless.AsleepError as error:
        assert all(text in str(error) for text in texts), error
    else:
        raise SystemExit(f"nothing was raised where {texts} was wanted")

with gapless.region("weights"):
    weight = torch.nn.Parameter(torch.empty(64, 64, device="cuda"))
    bias = torch.empty(64, device="cuda")
outside = torch.empty(64, 64, device="cuda")
product = torch.empty(64, 64, device="cuda", requires_grad=True) @ weight
assert dispatch._len_torch_dispatch_stack() == 0
gapless.sleep("weights")
assert dispatch._len_torch_dispatch_stack() == 1
raises(lambda: outside @ weight, "aten.mm", "'weights'", "gapless.wake('weights')")
raises(lambda: torch.nn.functional.linear(outside, weight, bias), "'weights'")
raises(lambda: torch.cat([outside, weight.detach()]), "aten.cat")
raises(lambda: torch.add(outside, 1, out=weight.detach()), "aten.add")
raises(lambda: weight.cpu(), "_to_copy")
raises(lambda: bias.zero_(), "zero_")
raises(lambda: bias[3:].fill_(1), "fill_")
assert str(bias) == "tensor(asleep in region 'weights', size=(64,), dtype=torch.float32, device='cuda:0')", str(bias)
# The backward pass runs in a thread of its own.
raises(lambda: product.sum().backward(), "'weights'")
# What needs no bytes is fine, and so is everything that is awake.
view, like = weight.detach()[3:].view(-1), torch.empty_like(weight)
assert view.shape == (61 * 64,) and like.shape == (64, 64) and gapless.is_asleep(view)
assert (outside + like).shape == (64, 64)
# Modes of the program lie above, and end in any order.
class Count(dispatch.TorchDispatchMode):
    seen = 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        Count.seen += 1
        return func(*args, **(kwargs or {}))
with Count():
    outside + 1
    gapless.wake("weights")
    outside + 1
    gapless.sleep("weights")
    raises(lambda: outside @ weight, "aten.mm")
assert Count.seen == 3 and dispatch._len_torch_dispatch_stack() == 1
gapless.wake("weights")
assert dispatch._len_torch_dispatch_stack() == 0
outside @ weight
# Other threads have the guard where they open it.
import threading
gapless.sleep("weights")
found = []
def other():
    with gapless.guard_sleeping():
        try:
            outside @ weight
        except gapless.AsleepError:
            found.append(dispatch._len_torch_dispatch_stack())
    found.append(dispatch._len_torch_dispatch_stack())
thread = threading.Thread(target=other)
thread.start()
thread.join()
assert found == [1, 0], found
gapless.wake("weights")
# It can be off.
gapless.sleep("weights", guard=False)
assert dispatch._len_torch_dispatch_stack() == 0
gapless.wake("weights")
os.environ["GAPLESS_SLEEP_GUARD"] = "0"
gapless.sleep("weights")
assert dispatch._len_torch_dispatch_stack() == 0
gapless.wake("weights")
os.environ["GAPLESS_SLEEP_GUARD"] = "maybe"
try:
    gapless.sleep("weights")
    raise SystemExit("it was taken")
except gapless.OptionError as error:
    assert "GAPLESS_SLEEP_GUARD" in str(error), error
"""
    )


def test_a_sleeping_tensor_has_no_stream_and_is_not_shared(bench):
    bench.passes(
        START
        + """
with gapless.region("weights"):
    weight = make(3 * MIB, 1)
stream = torch.cuda.Stream()
weight.record_stream(stream)
gapless.sleep("weights", guard=False)
for call, text in [(lambda: weight.record_stream(stream), "sleeps: wake its region"), (lambda: gapless.share({"weight": weight}), "sleeps")]:
    try:
        call()
        raise SystemExit("it was taken: " + text)
    except RuntimeError as error:
        assert text in str(error), error
# Freeing it is fine: it has been counted out.
del weight
assert one("weights").asleep == 0
gapless.wake("weights")
assert one("weights").held == 0
"""
    )


def test_compiled_functions_stay_compiled_while_something_sleeps(bench):
    bench.passes(
        START
        + """
import torch._dynamo
from torch._dynamo.testing import CompileCounter
with gapless.region("weights"):
    weight = make(3 * MIB, 1)
count = CompileCounter()
@torch.compile(backend=count)
def function(x):
    return x + 1
cold = torch.empty(16)
gapless.sleep("weights")
function(cold)
assert count.frame_count == 1, count.frame_count
gapless.wake("weights")
function(cold)
assert count.frame_count == 1, count.frame_count
""",
        cold=True,
    )


def test_regions_are_part_of_the_statistics(bench):
    bench.passes(
        START
        + """
with gapless.region("weights"):
    weight = make(30 * MIB, 1)
with gapless.region("cache/a", keep="discard"):
    cache = make(10 * MIB, 2)
found = gapless.stats()
assert found["gapless.region.weights.live"] == 30 * MIB and found["gapless.region.weights.asleep"] == 0, found
assert found["gapless.region.weights.held"] >= 30 * MIB and found["gapless.region.cache/a.live"] == 10 * MIB
gapless.sleep("weights")
gapless.sleep("cache/a")
found = gapless.stats()
assert [found[f"gapless.region.weights.{figure}"] for figure in ("live", "held", "asleep", "host")] == [0, 0, 30 * MIB, 30 * MIB]
assert [found[f"gapless.region.cache/a.{figure}"] for figure in ("live", "held", "asleep", "host")] == [0, 0, 10 * MIB, 0]
# What sleeps is neither allocated nor reserved, and not stranded.
assert found["allocated_bytes.all.current"] == 0 and found["reserved_bytes.all.current"] == 0 and found["gapless.stranded_bytes"] == 0
gapless.wake("weights")
assert gapless.stats()["gapless.region.weights.live"] == 30 * MIB
"""
    )


def test_retained_bytes_stay_at_their_place_on_the_host(bench):
    bench.passes(
        START
        + """
with gapless.region("weights"):
    a, b = make(30 * MIB, 1), make(3 * MIB, 2)
gapless.sleep("weights")
first = gapless.kept_bytes(a, copy=False).data_ptr()
assert bytes(gapless.kept_bytes(a, copy=False).numpy()) == pattern(1, 30 * MIB)
gapless.retain("weights")
gapless.wake("weights")
assert holds(a, 1) and one("weights").host >= 33 * MIB
assert gapless.kept_bytes(a, copy=False).data_ptr() == first
assert bytes(gapless.kept_bytes(b).numpy()) == pattern(2, 3 * MIB)
# The next sleep writes there, also where less is left.
card.card_poke(a.data_ptr(), pattern(7, 30 * MIB), 30 * MIB)
del b
gapless.retain("weights", False)
gapless.sleep("weights")
assert gapless.kept_bytes(a, copy=False).data_ptr() == first
assert bytes(gapless.kept_bytes(a, copy=False).numpy()) == pattern(7, 30 * MIB)
gapless.wake("weights")
assert holds(a, 7) and gapless.kept_bytes(a) is None and one("weights").host == 0
# What does not fit any more gets another place.
gapless.sleep("weights")
gapless.retain("weights")
gapless.wake("weights")
with gapless.region("weights"):
    c = make(50 * MIB, 3)
gapless.sleep("weights", verify=True)
gapless.wake("weights")
assert holds(a, 7) and holds(c, 3)
"""
    )


def test_two_regions_that_do_not_fit_together_change_places(bench):
    bench.passes(
        START
        + """
import random
dice = random.Random(3)
MOST = 24 * MIB
def fill(name, seed):
    with gapless.region(name):
        sizes = [dice.randrange(MIB, 4 * MIB) for _ in range(12)] + [900, 5000]
        while sum(sizes) > MOST:
            sizes.pop(0)
        return {seed + at: make(size, seed + at) for at, size in enumerate(sizes)}
def whole(tensors):
    return all(holds(tensor, seed) for seed, tensor in tensors.items())
a = fill("a", 10)
gapless.sleep("a")
b = fill("b", 40)
places = {seed: tensor.data_ptr() for seed, tensor in {**a, **b}.items()}
for turn in range(6):
    down, up = ("b", "a") if turn % 2 == 0 else ("a", "b")
    slept, woke = gapless.switch(sleep=down, wake=up, verify=turn > 3)
    assert slept.copied_bytes > 12 * MIB and woke.copied_bytes > 12 * MIB
    assert one(down).held == 0 and one(up).asleep == 0
    assert whole(a if up == "a" else b), turn
# A failure of any copy, and of any driver call, leaves each region whole: awake or asleep.
card.card_fail_in.argtypes = [ctypes.c_int64]
failures = 0
for fail in [lambda at=at: card.card_fail_copy(at) for at in range(0, 24, 3)] + [lambda at=at: card.card_fail_in(at) for at in range(0, 90, 7)]:
    down, up = ("b", "a") if one("b").live else ("a", "b")
    fail()
    try:
        gapless.switch(sleep=down, wake=up)
        failed = False
    except gapless.GaplessError:
        failed = True
    except torch.OutOfMemoryError:
        failed = True
    card.card_fail_copy(-1)
    card.card_fail_in(-1)
    failures += failed
    for name, tensors in (("a", a), ("b", b)):
        found = one(name)
        assert bool(found.live) != bool(found.asleep), found
        if found.live:
            assert whole(tensors), name
    if one("a").asleep and one("b").asleep:
        gapless.wake(down)
        assert whole(b if down == "b" else a)
assert failures > 8, failures
down, up = ("b", "a") if one("b").live else ("a", "b")
gapless.switch(sleep=down, wake=up)
assert whole(a if up == "a" else b)
assert places == {seed: tensor.data_ptr() for seed, tensor in {**a, **b}.items()}
""",
        STANDIN_CAPACITY=str(38 << 20),
    )


def test_what_torch_memory_savers_examples_demand(bench, tmp_path):
    """The steps of its cpu_backup.py and disk_backup.py, with bytes that the stand-in card can have."""
    bench.passes(
        START
        + f"""
folder = {str(tmp_path)!r}
from gapless.integrations.torch_memory_saver import Saver, _Below
from gapless.integrations import torch_memory_saver as module
saver = module.torch_memory_saver
below = _Below(saver)
assert saver.retain_cpu_backup is False and below.tms_get_cpu_backup_backend() == b"pinned"
# Retained: one place on the host over many pauses, with new bytes each time.
with saver.region(tag="retained", enable_cpu_backup=True, cpu_backup_backend="mmap"):
    assert below.tms_get_cpu_backup_backend() == b"mmap"
    tensor = make(4096, 1)
saver.pause("retained")
first = saver.get_cpu_backup(tensor, zero_copy=True).data_ptr()
saver.retain_cpu_backup = True
saver.resume("retained")
for seed in (2, 3):
    assert saver.get_cpu_backup(tensor, zero_copy=True).data_ptr() == first
    card.card_poke(tensor.data_ptr(), pattern(seed, 4096), 4096)
    saver.pause("retained")
    backup = saver.get_cpu_backup(tensor, zero_copy=True)
    assert backup.data_ptr() == first and bytes(backup.numpy()) == pattern(seed, 4096)
    saver.retain_cpu_backup = seed == 2
    del backup
    saver.resume("retained")
    assert holds(tensor, seed)
assert saver.get_cpu_backup(tensor) is None
# A backup goes with its allocation, awake or paused: its memory is not pinned any more.
for paused in (False, True):
    tag = "free_" + str(paused)
    with saver.region(tag=tag, enable_cpu_backup=True):
        tensor = make(4096, 5)
    saver.retain_cpu_backup = True
    saver.pause(tag)
    if not paused:
        saver.resume(tag)
    backup = saver.get_cpu_backup(tensor, zero_copy=True)
    assert bytes(backup.numpy()) == pattern(5, 4096)
    pool = below._mem_pools.pop((tag, True, False, "pinned", 0))
    del backup
    with below._with_region_config(tag=tag, enable_cpu_backup=True, cpu_backup_backend="pinned"):
        del tensor, pool
    assert card.card_pinned() == 0, card.card_pinned()
    saver.retain_cpu_backup = False
# On disk: files with names, as many bytes each time, gone when resumed.
below.tms_set_disk_backup_dir(folder.encode())
with saver.region(enable_disk_backup=True):
    big, small = make(13 * MIB + 12345, 6), make(7, 7)
sizes = set()
for _ in range(3):
    saver.pause()
    files = os.listdir(folder)
    total = sum(os.path.getsize(os.path.join(folder, name)) for name in files)
    assert len(files) >= 2 and total >= 13 * MIB + 12345, files
    sizes.add(total)
    saver.resume()
    assert holds(big, 6) and holds(small, 7) and os.listdir(folder) == []
assert len(sizes) == 1
"""
    )


def test_others_give_their_memory_back(bench):
    bench.passes(
        START
        + """
from gapless import _others
class Group: pass
class Nccl:
    calls = []
    def ncclCommSuspend(self, comm, flags):
        Nccl.calls.append(("suspend", comm.value, flags.value))
        return 0 if comm.value != 7 else 5
    def ncclCommResume(self, comm):
        Nccl.calls.append(("resume", comm.value))
        return 0
found = gapless.suspend_others()
assert (found.communicators, found.nccl_bytes, found.notes) == (0, 0, ()), found
_others._communicators = lambda torch, device: [(5, Group()), (7, Group())]
_others._nccl = lambda: Nccl()
found = gapless.suspend_others()
assert found.communicators == 1 and "failed with 5" in found.notes[0] and "1 communicators" in str(found), found
assert Nccl.calls == [("suspend", 5, 1), ("suspend", 7, 1)]
assert gapless.resume_others() == 1 and Nccl.calls[-1] == ("resume", 5) and gapless.resume_others() == 0
# A library without the function is told, and nothing is changed.
_others._nccl = lambda: object()
found = gapless.suspend_others()
assert found.communicators == 0 and "ncclCommSuspend" in found.notes[0], found
# Workspaces are torch's tensors: they go, and their memory is the card's.
left, right = torch.empty(8, 8, device="cuda"), torch.empty(8, 8, device="cuda")
left @ right
before = torch.cuda.memory_allocated()
found = gapless.suspend_others()
assert found.cublas_bytes == before - torch.cuda.memory_allocated() and found.cublas_bytes >= 0
"""
    )


def test_what_torch_keeps_for_itself_does_not_sleep(bench):
    """cuBLAS's workspaces, eager, in a backward pass and in a capture, and the seeds of graphs: made in a region, they
    serve the whole process. Their sizes are also those of tensors, which do belong to the region."""
    bench.passes(
        START
        + """
size = 8519680
with gapless.region("engine"):
    weight = torch.zeros(256, 256, device="cuda", requires_grad=True)
    alike = torch.empty(size, dtype=torch.uint8, device="cuda")
    counter = torch.zeros(1, dtype=torch.long, device="cuda")
    held = one("engine").live
    product = weight @ weight
    product.sum().backward()
    grown = one("engine").live - held
    # The product, its sum and the gradient; a workspace is 8 MiB and more.
    assert grown < 4 * MIB, grown
    del product
    graph = torch.cuda.CUDAGraph()
    before = places()
    with torch.cuda.graph(graph):
        drawn = torch.rand(64, device="cuda") @ weight.detach()[:64]
made = places() - before
gapless.sleep("engine")
assert gapless.is_asleep(alike) and gapless.is_asleep(counter) and gapless.is_asleep(drawn)
awake = places()
# Newer releases make a workspace for each product, and seeds for each graph.
is_kept = tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 13)
assert is_kept == any(found[1] >= size for found in awake), awake
# Two seeds of 512 bytes each at least, made by the capture.
assert not is_kept or len([found for found in awake & made if found[1] <= 512]) >= 2, (awake, made)
# A product outside takes the workspace that is there.
other = torch.zeros(64, 64, device="cuda")
count = len(places())
(other @ other).sum()
assert len(places()) == count, "the workspace of this stream is asleep or was made anew"
gapless.wake("engine")
graph.replay()
""",
        CUBLAS_WORKSPACE_CONFIG=":4096:2:16:8",
    )


def test_a_workspace_that_is_freed_goes_to_no_tensor(bench):
    """A graph may remember its address: the memory stays with PyTorch's own."""
    bench.passes(
        START
        + """
with gapless.region("engine"):
    weight = torch.zeros(256, 256, device="cuda")
    weight @ weight
    size, place = max((size, place) for place, size in places())
torch._C._cuda_clearCublasWorkspaces()
torch.cuda.empty_cache()
tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(8)]
assert all(not place <= tensor.data_ptr() < place + size for tensor in tensors)
other = torch.zeros(64, 64, device="cuda")
with gapless.region("engine"):
    other @ other
assert place in {found for found, _ in places()}
""",
    )


@pytest.mark.parametrize("kind", ["graph", "pool"])
@pytest.mark.parametrize("when", ["before", "asleep", "never"])
def test_tensors_of_a_graph_or_pool_that_goes_stay_in_the_region(bench, kind, when):
    bench.passes(
        START
        + f"""
kind, when = {kind!r}, {when!r}
with gapless.region("engine"):
    plain = make(3 * MIB, 1)
    if kind == "graph":
        keeper = torch.cuda.CUDAGraph()
        with torch.cuda.graph(keeper):
            out = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
    else:
        keeper = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(keeper):
            out = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
assert card.card_poke(out.data_ptr(), pattern(2, 4 * MIB), 4 * MIB) == 0
if when == "before":
    del keeper
for cycle in range(2):
    gapless.sleep("engine")
    assert gapless.is_asleep(plain) and gapless.is_asleep(out)
    if when == "asleep" and cycle == 0:
        del keeper
    torch.cuda.empty_cache()
    junk = [make(30 * MIB, 9) for _ in range(3)]
    del junk
    gapless.wake("engine")
    assert not gapless.is_asleep(out) and holds(out, 2) and holds(plain, 1)
del out, plain
keeper = None
torch.cuda.empty_cache()
gapless.sleep("engine")
gapless.wake("engine")
assert one("engine").live == 0 and torch.cuda.memory_reserved() < 4 * MIB, torch.cuda.memory_reserved()
"""
    )


def test_what_comes_while_a_region_sleeps_keeps_nobody_from_waking(bench):
    bench.passes(
        START
        + """
with gapless.region("late"):
    plain = make(3 * MIB, 1)
with gapless.region("other"):
    other = make(2 * MIB, 5)
gapless.sleep("other")
for turn in range(3):
    gapless.sleep("late", guard=False)
    with gapless.region("late"):
        tensor = make(5 * MIB, 2)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            drawn = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            pooled = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    assert not any(gapless.is_asleep(one) for one in (tensor, drawn, pooled))
    if turn == 1:
        gapless.wake("other")
        gapless.switch(sleep="other", wake="late")
    else:
        gapless.wake("late")
    assert holds(plain, 1) and holds(tensor, 2)
    gapless.sleep("late", guard=False)
    assert all(gapless.is_asleep(one) for one in (plain, tensor, drawn, pooled))
    gapless.wake("late")
    assert holds(plain, 1) and holds(tensor, 2)
""",
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


def test_the_profiler_hears_right_totals_of_what_is_freed_asleep(bench):
    bench.passes(
        START
        + """
import json, tempfile
with gapless.region("weights"):
    tensors = [make(3 * MIB, 1) for _ in range(4)]
kept = make(MIB, 2)
gapless.sleep("weights", guard=False)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
    del tensors[0]
    other = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    tensors.clear()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "trace.json")
    profile.export_chrome_trace(path)
    events = json.load(open(path))["traceEvents"]
totals = [event["args"]["Total Allocated"] for event in events if event.get("name") == "[memory]" and event["args"].get("Device Type") == 1]
assert len(totals) == 5 and all(total in (MIB, 3 * MIB) for total in totals), totals
""",
    )
