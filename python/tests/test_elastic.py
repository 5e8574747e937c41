"""Tensors that grow, over the stand-in card: the addresses that have pages, limits of pages, and the thread that calls
the driver."""

import pytest

START = """
import ctypes, gc, os, sys, threading, time
import torch
import gapless

card = ctypes.CDLL("libcuda.so.1")
card.device_used.restype = card.card_calls.restype = card.device_behind.restype = ctypes.c_uint64
card.card_fail_in.argtypes = [ctypes.c_int64]
card.card_poke.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
MIB = 1 << 20

def mapped(elastic):
    "Which slots have a page, by asking the card."
    x, page = ctypes.c_uint64(), elastic.pool.page
    base = elastic.full.untyped_storage().data_ptr()
    count = elastic.full.untyped_storage().nbytes() // page
    return "".join("x" if card.device_behind(ctypes.c_uint64(base + at * page), ctypes.byref(x), ctypes.byref(x)) else "." for at in range(count))

def until(true):
    for _ in range(3000):
        if true():
            return
        time.sleep(0.005)
    raise SystemExit("it never came")
"""


@pytest.fixture
def grows(real):
    def run(program, **environment):
        return real.passes(START + program, **environment).lines()

    return run


def test_pages_come_and_go(grows):
    lines = grows("""
gapless.enable()
e = gapless.elastic((10, MIB), torch.uint8, page="2MiB")
print(e.size, list(e.full.shape), list(e.tensor.shape), e.tensor.is_cuda)
until(lambda: mapped(e) == "xx...")
t = e.grow(5)
print(list(t.shape), t.data_ptr() == e.full.data_ptr(), mapped(e)[:3])
until(lambda: mapped(e) == "xxxxx")
assert card.card_poke(t.data_ptr() + 5 * MIB - 4, b"abcd", 4) == 0
e.shrink(4)
until(lambda: mapped(e) == "xxx..")
print(e.size, e.nbytes // MIB)
e.grow(9)
print(e.size, mapped(e))
print(e.release(slice(3, 9)) // MIB, e.size)
until(lambda: mapped(e) == "xx..x")
e.take(slice(3, 5))
print(mapped(e))
bad = [lambda: e.grow(1), lambda: e.shrink(11), lambda: e.grow(-1), lambda: e.release(slice(0, 4, 2))]
bad += [lambda: gapless.elastic((0,), torch.uint8), lambda: gapless.elastic((4,), torch.uint8, page="3MiB"), lambda: gapless.elastic((4,), "u8")]
for work in bad:
    try:
        work()
        print("done")
    except gapless.GaplessError as error:
        print(error)
before = card.device_used()
e.pool.trim()
held = e.pool.stats()["held"]
del e, t
gc.collect()
until(lambda: card.device_used() <= before - 6 * MIB or True)
pool = list(gapless._elastic._shared_pools.values())[0]
pool.trim()
print(held // MIB, pool.stats()["held"], card.device_used())
""")
    assert lines[:8] == [
        "0 [10, 1048576] [0, 1048576] True",
        "[5, 1048576] True xxx",
        "1 2",
        "10 xxxxx",
        "4 10",
        "xxx.x",
        "an elastic tensor for 10 cannot reach 11: make it with a larger shape",
        "an elastic tensor of 10 cannot shrink by 11",
    ]
    assert "-1 is not a number" in lines[8] and "has steps" in lines[9] and "shape=(0,)" in lines[10]
    assert "is not a multiple of 2 MiB" in lines[11] and "is not a torch.dtype" in lines[12]
    assert lines[13] == "8 0 0"


def test_growth_within_what_is_ahead_makes_no_driver_call_here(grows):
    """Counted by the card, for this thread, and by the library."""
    lines = grows("""
gapless.enable()
pool = gapless.elastic_pool(page="2MiB", ahead=2)
caches = [pool.elastic((256, 64 << 10), torch.uint8) for _ in range(3)]
entries = lambda: gapless._session._on().optional("gapless_driver_entries")
until(lambda: all(mapped(e).startswith("xx") for e in caches))
before = card.card_calls(), entries()
for step in range(256):
    for e in caches:
        # As a decode loop: the thread has had time since the last step.
        until(lambda: e.size % 32 or mapped(e)[e.size // 32] == "x")
        e.grow(1)
assert card.card_calls() == before[0] and entries() == before[1], (card.card_calls() - before[0], entries() - before[1])
print(all(e.size == 256 and mapped(e) == "x" * 8 for e in caches))
for e in caches:
    e.resize(0)
print(card.card_calls() - before[0], entries() - before[1])
""")
    assert lines == ["True", "0 0"]


def test_a_dimension_in_the_middle_has_pages_for_each_entry_before_it(grows):
    lines = grows("""
gapless.enable()
e = gapless.elastic((2, 3, 8, 1 << 18), torch.float16, dim=2, pool=gapless.elastic_pool(page="2MiB", ahead=0))
t = e.grow(3)
print(mapped(e), list(t.shape), t.stride())
try:
    t[1, 2, 2]
    print(t[1, 2, 2].data_ptr() - t.data_ptr() == 5 * 4 * MIB + 2 * (MIB // 2))
except Exception as error:
    print(error)
e.grow(2)
print(mapped(e))
""")
    assert lines == [
        f"{'x.' * 6} [2, 3, 3, {1 << 18}] ({3 << 21}, {1 << 21}, {1 << 18}, 1)",
        "True",
        "xx" * 6,
    ]


def test_a_pool_has_a_limit_and_its_pages_move(grows):
    lines = grows("""
import os, tempfile
gapless.enable()
pool = gapless.elastic_pool(limit="8MiB", page="2MiB", ahead=1)
a, b = pool.elastic((16, MIB), torch.uint8), pool.elastic((4, 1 << 19), torch.int16)
a.grow(6)
b.grow(2)
print(pool.stats()["held"] // MIB, mapped(a)[:4])
try:
    b.grow(1)
except torch.OutOfMemoryError as error:
    print(b.size, error)
a.shrink(2)
b.grow(1)
print(b.size, pool.stats()["used"] // MIB, pool.stats()["held"] // MIB)
# Work in flight keeps what it uses: who waits for the card waits for as long as this file is there.
stalls = tempfile.mkstemp()[1]
os.environ["STANDIN_STALL"] = stalls
b.shrink(3)
time.sleep(0.1)
print(mapped(b)[:2])
os.remove(stalls)
a.grow(2)
print(a.size, mapped(a)[:3], mapped(b)[:2])
""")
    assert lines[0].startswith("8 xxx")
    assert lines[1].startswith("2 gapless: an elastic tensor needs 4194304 bytes to reach 3, and has 2097152: its pool has a limit of 8.00 MiB")
    assert lines[2:] == ["3 8 8", "xx", "6 xxx .."] or lines[2:4] == ["3 8 8", "xx"]


def test_budget_and_share_hold_for_elastic_pages(grows, tmp_path):
    lines = grows(
        """
gapless.enable(process_limit="600MiB")
x = torch.empty(1, device="cuda")
outside = gapless.stats()["gapless.budget.outside"]
pool = gapless.elastic_pool(page="16MiB", ahead=0)
e = pool.elastic((64, 16 * MIB), torch.uint8)
try:
    e.grow(60)
except torch.OutOfMemoryError as error:
    print(e.size, "The budget of this process is 600.00 MiB" in str(error))
room = (600 * MIB - outside) // (16 * MIB) - 1
e.grow(room)
print(e.size == room)
""",
        GAPLESS_RUN_DIR=str(tmp_path),
    )
    assert lines == ["0 True", "True"]


def test_a_failure_at_every_driver_call(grows):
    lines = grows("""
gapless.enable()
torch.empty(1, device="cuda")
pool = gapless.elastic_pool(page="2MiB", ahead=1)
e = pool.elastic((12, MIB), torch.uint8)
e.grow(2)
until(lambda: mapped(e)[:2] == "xx")
failures = 0
for at in range(40):
    e.resize(2)
    pool.trim()
    card.card_fail_in(at % 14)
    try:
        e.resize(11)
        assert mapped(e) == "x" * 6, mapped(e)
    except (torch.OutOfMemoryError, gapless.GaplessError) as error:
        failures += 1
        assert e.size == 2 and mapped(e)[0] == "x", (e.size, mapped(e))
        assert "CUDA error 999" in str(error), error
    finally:
        card.card_fail_in(-1)
print(failures > 5, e.size in (2, 11))
e.resize(12)
print(mapped(e))
e.resize(0)
pool.trim()
print(pool.stats()["held"])
""")
    assert lines == ["True True", "xxxxxx", "0"]


def test_a_block_table_takes_the_lowest_blocks_and_shrinks(grows):
    lines = grows("""
gapless.enable()
cache = gapless.elastic((64, MIB), torch.uint8, pool=gapless.elastic_pool(limit="24MiB", page="2MiB", ahead=0))
table = gapless.BlockTable(cache, block=16)
print(table.append("a", 33), table.append("b", 16), table.append("a", 15), cache.size)
print(table.append("a", 1), table.append("b", 1), list(table.rows(["a", "b"]).shape), table.rows(["b"]).dtype)
table.end("a")
print(table.append("c", 40), table.blocks("b"), cache.size, table.tokens("b"))
try:
    table.append("d", 16 * 40)
except torch.OutOfMemoryError:
    print("refused", cache.size, "d" in table._blocks)
table.end("b")
table.end("c")
print(cache.size, table.append("e"))
""")
    assert lines == [
        "[0, 1, 2] [3] [] 4",
        "[4] [5] [2, 4] torch.int32",
        "[0, 1, 2] [3, 5] 6 17",
        "refused 6 False",
        "0 [0]",
    ]


def test_pages_come_and_go_beside_a_capture_and_leave_it_whole(grows):
    lines = grows("""
gapless.enable()
pool = gapless.elastic_pool(limit="8MiB", page="2MiB", ahead=0)
e, other = pool.elastic((8, MIB), torch.uint8), pool.elastic((8, MIB), torch.uint8)
e.grow(8)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    e.shrink(6)
    until(lambda: mapped(e) == "x...")
    other.grow(6)
    print(mapped(other), other.size)
graph.replay()
print(mapped(e), e.size)
""")
    assert lines == ["xxx. 6", "x... 2"]


def test_a_tensor_outlives_its_pool_and_then_everything_goes(grows):
    lines = grows("""
gapless.enable()
before = card.device_used()
t = gapless.elastic_pool(page="2MiB", ahead=1).elastic((8, MIB), torch.uint8).grow(4)
gc.collect()
print(card.card_poke(t.data_ptr(), b"abcd", 4), (card.device_used() - before) // MIB >= 4)
del t
gc.collect()
until(lambda: card.device_used() == before)
print("all of it")
""")
    assert lines == ["0 True", "all of it"]


def test_free_pages_go_to_another_tenant_that_needs_them(real, tmp_path):
    from test_sharing import START as PROCESSES

    lines = real.passes(
        PROCESSES
        + """
import gapless
there, here = Reader(is_gapless=False), Reader(is_gapless=False)
there.does('''
import gapless
gapless.enable(tenant="a:30%:borrow")
pool = gapless.elastic_pool(page="32MiB", ahead=1)
e = pool.elastic((128, 32 * MIB), torch.uint8)
e.grow(80)
e.shrink(70)
answer = None
''')
until(lambda: there.does("answer = pool.stats()['free']") == 70 * 32 * MIB or there.does("answer = pool.stats()['held']") < 80 * 32 * MIB)
here.does("import gapless; gapless.enable(tenant='b:60%')")
here.does("x = torch.empty(2000 * MIB, dtype=torch.uint8, device='cuda')")
print(here.does("answer = x.numel() // MIB"), there.does("answer = e.size, pool.stats()['used'] // MIB, pool.stats()['held'] // MIB < 1000"))
here.end()
there.end()
""",
        GAPLESS_RUN_DIR=str(tmp_path),
    ).lines()
    assert lines == ["2000 (10, 320, True)"]


def test_every_size_has_its_pages(grows):
    """Also sizes next to the end of a page, with rows that end nowhere near one, and around released parts."""
    lines = grows("""
gapless.enable()
import random
rng, row, page = random.Random(5), 3001, 2 * MIB
e = gapless.elastic((5000, row), torch.uint8, page="2MiB")
edges = [at * page // row + by for at in range(1, 8) for by in (-1, 0, 1)]
for turn in range(400):
    size = rng.choice([rng.randrange(5001), rng.choice(edges), min(e.size + 1, 5000), max(e.size - 1, 0), 0, 5000])
    if e.size and rng.random() < 0.1:
        low = rng.randrange(e.size)
        e.release(slice(low, e.size))
        e.take(slice(0, e.size))
    e.resize(size)
    need = -(-size * row // page)
    assert e.size == size and e.nbytes == need * page, (turn, size)
    assert mapped(e)[:need] == "x" * need, (turn, size, mapped(e))
for wrong in (5001, -1, 2.0, True):
    try:
        e.resize(wrong)
        print("no error for", wrong)
    except gapless.GaplessError:
        pass
print("all")
""")
    assert lines == ["all"], lines
