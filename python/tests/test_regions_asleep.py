"""Events while a region sleeps: tensors that are touched, memory that others take, what stays on the card."""

import pytest

from regions_start import START


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
