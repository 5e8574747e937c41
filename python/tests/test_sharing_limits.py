"""CUDA IPC in a process with few file descriptors or few addresses: calls that work on torch's own allocator work, or
are refused in words, and nothing spins or hangs."""

import pytest

from test_sharing import START

# So many descriptors are free, and no more; None: as many as before.
LIMITS = """
import resource
lib = ctypes.CDLL(os.environ["GAPLESS_LIBRARY"])
lib.gapless_sharing_accepts.restype = ctypes.c_uint64

def free_files(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    global filled
    for file in globals().pop("filled", []):
        os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    if count is None:
        return
    most = max(int(name) for name in os.listdir("/proc/self/fd")) + 20 + count
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    filled = []
    while True:
        try:
            filled.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            break
    for _ in range(count):
        os.close(filled.pop())
"""


@pytest.fixture
def share(real):
    def run(program, **environment):
        return real.passes(START + LIMITS + program, **environment).lines()

    return run


# Blocks of one page, of many, and of more pages of several sizes than one message carries.
TENSORS = """
def tensors():
    held = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(160)]
    del held[::2]
    made = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 5 * MIB, 46 * MIB, 180 * MIB)]
    for at, tensor in enumerate(made):
        write(tensor, at)
    return held, made

OPEN = "got = pickle.loads(it); answer = holds(got, NUMBER); del got"
REST = 0.15  # what was dropped rests so long at most: then it is opened anew

def opens(reader, sent):
    answers = []
    for at, one in enumerate(sent):
        answers.append(reader.ask(OPEN.replace("NUMBER", str(at)), one))
    time.sleep(REST)
    return answers

def quiet():
    "How often readers came, once none comes any more."
    for _ in range(50):
        before = lib.gapless_sharing_accepts()
        time.sleep(0.3)
        if lib.gapless_sharing_accepts() == before:
            return before
    assert True is False, "it spins"
"""


def test_a_sender_without_descriptors_serves_its_readers(share):
    lines = share(
        TENSORS
        + """
reader = Reader()
import gapless
gapless.enable()
held, made = tensors()
sent = [dumps(tensor) for tensor in made]
assert all(done and answer for done, answer in opens(reader, sent)), "with room for all"
for free in (0, 1, 2, 5, 33, 70):
    free_files(free)
    before = quiet()
    answers = opens(reader, sent)
    assert all(done and answer for done, answer in answers), (free, answers)
    # Each was opened once, and its reader said that it was dropped.
    accepts = quiet() - before
    assert accepts <= 2 * len(sent), (free, accepts)
free_files(None)
assert all(done and answer for done, answer in opens(reader, sent))
reader.end()
print("ok")
"""
    )
    assert lines == ["ok"]


def test_a_sender_that_begins_without_descriptors_says_so_and_recovers(share):
    lines = share(
        TENSORS
        + """
reader = Reader()
import gapless
gapless.enable()
held, made = tensors()
seen = {}
for free in range(8):
    free_files(free)
    try:
        made[1].untyped_storage()._share_cuda_()
        seen[free] = "shared"
    except RuntimeError as error:
        seen[free] = "refused" if "no free file descriptors" in str(error) or "Too many open files" in str(error) else str(error)
free_files(None)
sent = [dumps(tensor) for tensor in made]
assert all(done and answer for done, answer in opens(reader, sent))
reader.end()
print(seen[0], seen[7], set(seen.values()) == {"refused", "shared"})
"""
    )
    assert lines == ["refused shared True"]


def test_a_reader_without_descriptors_is_told_so_and_one_with_two_opens_everything(share):
    lines = share(
        TENSORS
        + """
reader = Reader()
import gapless
gapless.enable()
held, made = tensors()
sent = [dumps(tensor) for tensor in made]
reader.does("free_files(None); mine = torch.empty(1, device='cuda')")
# What torch itself opens once for all tensors of a sender is open.
assert all(done and answer for done, answer in opens(reader, sent))
for free in (0, 1, 2, 3, 7, 66):
    reader.does("free_files(it)", free)
    before = quiet()
    answers = opens(reader, sent)
    works = [done and answer for done, answer in answers]
    words = [answer for done, answer in answers if not done]
    assert all("this process has no free file descriptors: close files" in text for text in words), (free, words)
    print(free, works == [True] * 4, works == [False] * 4)
    assert quiet() - before <= 3 * len(sent), free
reader.does("free_files(None)")
assert all(done and answer for done, answer in opens(reader, sent))
# What was refused is not counted as read: a region of the sender would not sleep.
with gapless.region("r"):
    x = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda")
write(x, 0)
reader.does("free_files(it)", 1)
assert not reader.ask(OPEN.replace("NUMBER", "0"), dumps(x))[0]
reader.does("free_files(None)")
torch.cuda.ipc_collect()
until(lambda: gapless.sleep("r") or True)
reader.end()
"""
    )
    assert lines[0] == "0 False True" and lines[1] == "1 False True", lines
    assert lines[2:] == [f"{free} True False" for free in (2, 3, 7, 66)], lines


@pytest.mark.parametrize("room", [5, 64])
def test_few_addresses_serve_the_program_and_its_readers(share, room):
    """`room` GiB of addresses are left when the program begins: the allocator leaves some for what comes later."""
    lines = share(
        TENSORS
        + f"""
reader = Reader()
import gapless
gapless.enable()
torch.cuda.init()
def few(gib):
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (gib << 30), resource.RLIM_INFINITY))
few({room})
reader.does("import resource; torch.cuda.init()")
reader.does('''
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (it << 30), resource.RLIM_INFINITY))
mine = [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (1, 30, 60)]
for at in range(3):
    with torch.cuda.stream(torch.cuda.Stream()):
        mine.append(torch.empty(1000, dtype=torch.uint8, device="cuda"))
''', {room})
held, made = tensors()
sent = [dumps(tensor) for tensor in made]
answers = opens(reader, sent)
assert all(done and answer for done, answer in answers), answers
# Addresses for host memory are left too.
host = bytearray(100 << 20)
# What fits nowhere is refused in words.
try:
    gapless.elastic((1 << 15, 1 << 30), torch.uint8)
    print("32 TiB of addresses")
except Exception as error:
    print("RLIMIT_AS" in str(error) and "addresses are left" in str(error))
reader.end()
""",
        STANDIN_ADDRESSES="1",
    )
    assert lines == ["True"]


def test_memory_that_was_dropped_a_moment_ago_is_opened_without_a_call(share):
    """A producer that sends the same block again and again costs its reader no driver call and no round trip."""
    lines = share('''
reader = Reader()
import gapless
gapless.enable()
x = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
write(x, 0)
reader.does("lib.gapless_driver_entries.restype = ctypes.c_uint64; got = pickle.loads(it); del got", dumps(x))
accepts, calls, turns = lib.gapless_sharing_accepts(), [], 20
for turn in range(turns):
    calls.append(reader.does("""
before = lib.gapless_driver_entries()
got = pickle.loads(it)
answer = lib.gapless_driver_entries() - before
del got
""", dumps(x)))
# On a busy machine one may come late, and has rested too long.
print(min(calls), lib.gapless_sharing_accepts() - accepts < 2 * turns)
# It does not rest for long: the card has its memory again.
addr = reader.does("got = pickle.loads(it); answer = got.data_ptr(); del got", dumps(x))
until(lambda: not reader.does("""
offset, card.device_behind.restype = ctypes.c_uint64(), ctypes.c_uint64
answer = card.device_behind(ctypes.c_uint64(it), ctypes.byref(offset), ctypes.byref(offset))
""", addr))
reader.end()
''')
    assert lines == ["0 True"]
