"""CUDA IPC: tensors that another process reads without a copy, whoever of the two ends first. Bytes are those of the
stand-in card, which are the same in both processes only if both have the same pages mapped."""

import pytest

# Processes fork before either of them uses CUDA, as torch asks for. The reader obeys the lines of its pipe, until that
# closes.
START = """
import ctypes, os, pickle, signal, sys, time, traceback
import torch
import torch.multiprocessing
from multiprocessing import Pipe
from multiprocessing.reduction import ForkingPickler

card = ctypes.CDLL("libcuda.so.1")
card.card_poke.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
card.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
card.device_used.restype = ctypes.c_uint64
MIB = 1 << 20

def pattern(seed, size):
    return (bytes((seed * 37 + i * 11) % 251 for i in range(251)) * (size // 251 + 1))[:size]

def write(tensor, seed):
    storage = tensor.untyped_storage()
    assert card.card_poke(storage.data_ptr(), pattern(seed, storage.nbytes()), storage.nbytes()) == 0

def holds(tensor, seed):
    storage = tensor.untyped_storage()
    room = ctypes.create_string_buffer(storage.nbytes())
    assert card.cuMemcpyDtoHAsync_v2(room, storage.data_ptr(), storage.nbytes(), None) == 0
    return room.raw == pattern(seed, storage.nbytes())

def dumps(value):
    return bytes(ForkingPickler.dumps(value))

class Reader:
    "Another process. `ask(source, value)` runs the source there, with `it` the value; what it calls `answer` comes back."
    def __init__(self, is_gapless=True):
        self.pipe, other = Pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            other.close()
            return
        self.pipe.close()
        try:
            if is_gapless:
                import gapless
                gapless.enable()
            names = dict(globals())
            while True:
                source, value = other.recv()
                names.update(it=value, answer=None)
                try:
                    exec(source, names)
                    other.send((True, names["answer"]))
                except Exception as error:
                    other.send((False, f"{type(error).__name__}: {error}"))
        except EOFError:
            pass
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(0)

    def ask(self, source, value=None):
        self.pipe.send((source, value))
        assert self.pipe.poll(60), "the reader does not answer"
        return self.pipe.recv()

    def does(self, source, value=None):
        done, answer = self.ask(source, value)
        assert done, answer
        return answer

    def end(self):
        self.pipe.close()
        assert os.waitpid(self.pid, 0)[1] == 0

def until(true):
    for _ in range(2000):
        if true():
            return
        time.sleep(0.01)
    assert True is False, "it never came"
"""


@pytest.fixture
def share(real):
    def run(program, **environment):
        return real.passes(START + program, **environment).lines()

    return run


def test_a_reader_has_the_same_bytes_without_a_copy(share):
    lines = share("""
reader = Reader()
import gapless
gapless.enable()
# A few bytes; two blocks of one page; a block over a page; one over many pages of several sizes.
sizes = [1000, 3000, 700_000, 5 * MIB, 96 * MIB, 131 * MIB + 512]
tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
for at, tensor in enumerate(tensors):
    write(tensor, at)
before = card.device_used()
reader.does("got = [pickle.loads(one) for one in it]", [dumps(tensor) for tensor in tensors])
assert reader.does("answer = [holds(tensor, at) for at, tensor in enumerate(got)]") == [True] * 6
assert reader.does("answer = card.device_used()") == 0, "the reader made no pages of its own"
assert card.device_used() == before
# What one writes the other sees, both ways.
write(tensors[4], 77)
assert reader.does("answer = holds(got[4], 77)") is True
reader.does("write(got[5], 99)")
assert holds(tensors[5], 99) and holds(tensors[1], 1)
# A view keeps its storage.
reader.does("view = pickle.loads(it); answer = [view.shape, view.storage_offset()]", dumps(tensors[3][MIB:].view(-1, 2)[::2]))
# Blocks of one page are mapped once; what is given up is unmapped, and memory is freed where it was made.
assert reader.does("answer = got[0].data_ptr() - got[1].data_ptr()") == tensors[0].data_ptr() - tensors[1].data_ptr()
mapped = "offset = ctypes.c_uint64(); answer = card.device_behind(ctypes.c_uint64(it), ctypes.byref(offset), ctypes.byref(offset)) != 0"
addresses = reader.does("answer = [tensor.data_ptr() for tensor in got]")
assert all(reader.does("card.device_behind.restype = ctypes.c_uint64; " + mapped, addr) for addr in addresses)
reader.does("del got, view; import gc; gc.collect()")
# It rests for a moment: a producer mostly sends the same blocks again.
until(lambda: not any(reader.does(mapped, addr) for addr in addresses))
del tensors, tensor
torch.cuda.ipc_collect()
print(torch.cuda.memory_allocated())
torch.cuda.empty_cache()
print(card.device_used())
reader.end()
""")
    assert lines == ["0", "0"]


def test_windows_are_shared_as_the_pages_behind_them(share):
    lines = share(
        """
reader = Reader()
import gapless
gapless.enable()
# Free pages that do not lie side by side make room for one large block.
held = [torch.empty(24 * MIB, dtype=torch.uint8, device="cuda") for _ in range(12)]
del held[::2]
wide = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
print(gapless.stats()["gapless.windows_made"] > 0)
write(wide, 5)
for at, tensor in enumerate(held):
    write(tensor, 10 + at)
reader.does("wide, held = [pickle.loads(one) for one in it[:1]][0], [pickle.loads(one) for one in it[1:]]", [dumps(t) for t in (wide, *held)])
print(reader.does("answer = holds(wide, 5), [holds(tensor, 10 + at) for at, tensor in enumerate(held)]"))
reader.end()
""",
        STANDIN_CAPACITY=str(320 << 20),
    )
    assert lines == ["True", str((True, [True] * 6))]


NATIVE_READER = """
reader = Reader(is_gapless=False)
import gapless
gapless.enable()
reader.does("mine = torch.empty(MIB, dtype=torch.uint8, device='cuda')")
tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 2 * MIB)]
for at, tensor in enumerate(tensors):
    write(tensor, at)
reader.does("got = [pickle.loads(one) for one in it]", [dumps(tensor) for tensor in tensors])
print(reader.does("answer = [holds(tensor, at) for at, tensor in enumerate(got)]"))
print(reader.does("import gapless; answer = gapless.enabled()"))
reader.does("del got")
reader.end()
"""


def test_a_reader_without_gapless_opens_pages_of_one_size(share):
    opened, enabled = share(NATIVE_READER)
    assert (opened, enabled) == ("[True, True]", "False")


# Of 46 MiB, the last page is half as large as the others; the window's pages are more than torch gets by name.
TURNED_ON = """
# The one that ends first holds an end of the other's pipe.
used, reader = Reader(is_gapless=False), Reader(is_gapless=False)
import gapless
gapless.enable()
several = torch.empty(46 * MIB, dtype=torch.uint8, device="cuda")
many = [torch.empty(3 * MIB, dtype=torch.uint8, device="cuda") for _ in range(140)]
del many[::2]
tensors = [several, torch.empty(180 * MIB, dtype=torch.uint8, device="cuda")[7:]]
for at, tensor in enumerate(tensors):
    write(tensor, at)
sent = [dumps(tensor) for tensor in tensors]
# One that torch could open comes first: with torch's own allocator in place, nothing could be done for the others.
first = torch.empty(1000, dtype=torch.uint8, device="cuda")
reader.does("first = pickle.loads(it)", dumps(first))
reader.does("got = [pickle.loads(one) for one in it]", sent)
print(reader.does("answer = [holds(tensor, at) for at, tensor in enumerate(got)] + [got[1].storage_offset()]"))
print(reader.does("import gapless; answer = gapless.enabled()"))
write(several, 5)
print(reader.does("answer = holds(got[0], 5)"))
reader.does("del got, first")
reader.end()
# What a process without Gapless has of torch's own is not taken from it.
used.does("mine = torch.empty(MIB, dtype=torch.uint8, device='cuda')")
print(used.ask("pickle.loads(it)", sent[0])[1])
small = torch.empty(1000, dtype=torch.uint8, device="cuda")
write(small, 9)
used.does("small = pickle.loads(it)", dumps(small))
print(used.does("answer = holds(small, 9)"))
used.does("del small")
used.end()
"""


def test_a_reader_without_gapless_has_it_turned_on_for_memory_that_only_gapless_can_open(share):
    opened, enabled, seen, refused, small = share(TURNED_ON)
    assert (opened, enabled, seen, small) == ("[True, True, 7]", "True", "True", "True")
    assert refused.startswith("GaplessError: this process received a CUDA tensor whose memory only gapless can open")
    assert refused.endswith("call gapless.enable() in it before its first use of CUDA")


# Libraries call reduce_tensor themselves, and send its result by way of other processes.
PASSED_ON = """
between = Reader(is_gapless=False)
reader = Reader(is_gapless=False)
import gapless
gapless.enable()
from torch.multiprocessing.reductions import reduce_tensor
several = torch.empty(46 * MIB, dtype=torch.uint8, device="cuda")
write(several, 3)
function, arguments = reduce_tensor(several)
for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
    again = pickle.loads(pickle.dumps(arguments[7], protocol))
    assert again == arguments[7] and hash(again) == hash(arguments[7]) and isinstance(again, bytes), protocol
forwarded = between.does("function, arguments = pickle.loads(it); answer = pickle.dumps((function, arguments))", pickle.dumps((function, arguments)))
print(between.does("import gapless; answer = (gapless.enabled(), torch.cuda.is_initialized())"))
reader.does("function, arguments = pickle.loads(it); got = function(*arguments)", forwarded)
print(reader.does("answer = holds(got, 3)"))
reader.does("del got")
reader.end()
between.end()
"""


def test_a_process_that_passes_handles_on_stays_as_it_is(share):
    assert share(PASSED_ON) == ["(False, False)", "True"]


NATIVE_SENDER = """
# The reader is Gapless; this process is not.
reader = Reader()
tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 30 * MIB)]
sent = [dumps(tensor) for tensor in tensors]
reader.does("got = [pickle.loads(one) for one in it]", sent)
if HAS_BYTES:
    for at, tensor in enumerate(tensors):
        write(tensor, at)
    print(reader.does("answer = [holds(tensor, at) for at, tensor in enumerate(got)]"))
print(reader.does("answer = [list(tensor.shape) for tensor in got]"))
reader.does("del got")
reader.end()
"""


@pytest.mark.parametrize("is_expandable", [True, False])
def test_tensors_of_a_process_without_gapless_are_opened(share, is_expandable):
    setting = "expandable_segments:True" if is_expandable else None
    lines = share(f"HAS_BYTES = {is_expandable}\n" + NATIVE_SENDER, PYTORCH_CUDA_ALLOC_CONF=setting)
    assert lines == ["[True, True]"] * is_expandable + [str([[1000], [30 << 20]])]


def test_either_side_may_end_first(share):
    lines = share("""
import gapless
reader = Reader()
# A sender of its own, which is killed while the reader has its memory.
sender = Reader()
sender.does("x = torch.empty(40 * MIB, dtype=torch.uint8, device='cuda'); write(x, 3)")
sent = sender.does("answer = [dumps(x), dumps(x)]")
reader.does("got = pickle.loads(it)", sent[0])
late = sender.does("y = torch.empty(9 * MIB, dtype=torch.uint8, device='cuda'); answer = dumps(y)")
os.kill(sender.pid, signal.SIGKILL)
os.waitpid(sender.pid, 0)
print(reader.does("answer = holds(got, 3)"))
reader.does("write(got, 4)")
print(reader.does("answer = holds(got, 4)"))
# What was not opened in time cannot be had, and says why.
done, error = reader.ask("pickle.loads(it)", late)
print(done, "has ended" in error)
reader.does("del got")
# A reader that is killed leaves the sender as it was.
gapless.enable()
x = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
write(x, 7)
reader.does("got = pickle.loads(it)", dumps(x))
os.kill(reader.pid, signal.SIGKILL)
os.waitpid(reader.pid, 0)
print(holds(x, 7))
y = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
write(y, 8)
print(holds(x, 7) and holds(y, 8))
""")
    assert lines == ["True", "True", "False True", "True", "True"]


def test_a_forked_child_keeps_nobody_waiting(share):
    """A worker of a data loader has copies of the open descriptors. They must not answer for the process that ended."""
    lines = share(
        """
reader, sender = Reader(), Reader()
sender.does('''
x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
sent = dumps(x)
worker = os.fork()
if worker == 0:
    time.sleep(100)
    os._exit(0)
answer = None
''')
sent, worker = sender.does("answer = sent, worker")
os.kill(sender.pid, signal.SIGKILL)
os.waitpid(sender.pid, 0)
done, error = reader.ask("pickle.loads(it)", sent)
print(done, "has ended" in error)
os.kill(worker, signal.SIGKILL)
reader.end()
"""
    )
    assert lines == ["False True"]


def test_bad_handles_are_refused_in_words(share):
    lines = share("""
import gapless
gapless.enable()
x = torch.empty(1000, dtype=torch.uint8, device="cuda")
device, handle, nbytes, offset, counter, counter_offset, event, is_synced = x.untyped_storage()._share_cuda_()
open_ = lambda handle: torch.UntypedStorage._new_shared_cuda(device, handle, nbytes, offset, counter, counter_offset, event, is_synced)
for handle in (handle[:1], handle[:7], bytes([9]) + handle[1:], bytes([2]) + b"x" + handle[2:], handle[:10] + b"\\xff" * 12 + handle[22:]):
    try:
        open_(handle)
        print("opened")
    except RuntimeError as error:
        print(str(error).splitlines()[0])
""")
    start = "gapless: memory of another process cannot be opened: its handle is not understood: "
    assert lines[0] == start + "it is cut off"
    assert lines[1].startswith(start)
    assert lines[2].startswith(start + "its version is 9")
    assert lines[3].startswith(start + "its kind is 0x78")
    assert lines[4].startswith(start + "it names")


def test_memory_that_readers_gave_up_serves_a_request_before_it_fails(share):
    lines = share("""
reader = Reader()
import gapless
gapless.enable(limit=128 * MIB)
x = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
reader.does("got = pickle.loads(it)", dumps(x))
del x
print(torch.cuda.memory_allocated() >= 100 * MIB)
try:
    torch.empty(90 * MIB, dtype=torch.uint8, device="cuda")
    print("served though the reader has it")
except torch.OutOfMemoryError:
    print("refused")
reader.does("del got")
y = torch.empty(90 * MIB, dtype=torch.uint8, device="cuda")
print(torch.cuda.memory_allocated() // MIB)
reader.end()
""")
    assert lines == ["True", "refused", "90"]


def test_a_queue_of_torch_multiprocessing_carries_tensors(share):
    """The way that most programs share: processes of torch's own making, with its reference counts and events."""
    lines = share("""
import torch.multiprocessing as mp

def work(there, back):
    import gapless
    gapless.enable()
    while True:
        got = there.get()
        if got is None:
            break
        back.put((holds(got, 1), tuple(got.shape)))
        write(got, 2)
        back.put("written")
        del got

context = mp.get_context("fork")
there, back = context.Queue(), context.Queue()
process = context.Process(target=work, args=(there, back))
process.start()
import gapless
gapless.enable()
for size in (10, 4 * MIB, 70 * MIB) * 3:
    x = torch.empty(size, dtype=torch.uint8, device="cuda")
    write(x, 1)
    there.put(x)
    assert back.get(timeout=60) == (True, (size,))
    assert back.get(timeout=60) == "written"
    assert holds(x, 2)
    del x
there.put(None)
process.join(60)
print(process.exitcode)
torch.cuda.ipc_collect()
print(torch.cuda.memory_allocated())
""")
    assert lines == ["0", "0"]


def test_pages_are_handed_over_while_a_thread_of_their_owner_waits_for_the_card(share, tmp_path):
    """Its work may wait for the reader: torch's own handles need nothing of the process that gave them."""
    share(
        """
import threading
reader = Reader()
import gapless
gapless.enable()
stall = os.environ["STANDIN_STALL"]
x, junk = torch.empty(96 * MIB, dtype=torch.uint8, device="cuda"), torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
write(x, 3)
told = dumps(x)
del junk
open(stall, "w").close()
empties = threading.Thread(target=torch.cuda.empty_cache)
empties.start()
try:
    # It waits without the card: other threads are served meanwhile.
    while open(f"/proc/self/task/{empties.native_id}/stat").read().rpartition(")")[2].split()[0] != "S":
        time.sleep(0.01)
    for size in (1, 50, 150):
        asks = threading.Thread(target=lambda: torch.empty(size * MIB, dtype=torch.uint8, device="cuda"))
        asks.start()
        asks.join(60)
        assert not asks.is_alive(), f"a request of {size} MiB waits"
    reader.does("os.environ.pop('STANDIN_STALL'); got = pickle.loads(it); answer = holds(got, 3)", told)
    assert empties.is_alive()
finally:
    os.unlink(stall)
empties.join(60)
reader.does("del got")
reader.end()
""",
        STANDIN_STALL=str(tmp_path / "stall"),
    )


def test_memory_is_freed_while_another_thread_closes_what_it_received(share, tmp_path):
    """Closing waits for the card, whose work may free memory itself, in host functions."""
    share(
        """
reader = Reader()
import gapless
gapless.enable()
x = torch.empty(96 * MIB, dtype=torch.uint8, device="cuda")
reader.does('''
import threading
got = pickle.loads(it)
mine = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 5 * MIB, 60 * MIB)]
stall = os.environ["STANDIN_STALL"]
open(stall, "w").close()
box, addr, offset = [got], got.data_ptr(), ctypes.c_uint64()
card.device_behind.restype = ctypes.c_uint64
del got
closes = threading.Thread(target=box.clear)
closes.start()
try:
    closes.join(60)
    assert not closes.is_alive(), "who drops it waits"
    # It has rested: a thread of the library's waits for the card.
    time.sleep(0.4)
    is_mapped = lambda: card.device_behind(ctypes.c_uint64(addr), ctypes.byref(offset), ctypes.byref(offset)) != 0
    assert is_mapped(), "closing waits for nothing"
    frees = threading.Thread(target=mine.clear)
    frees.start()
    frees.join(60)
    assert not frees.is_alive() and is_mapped()
    more = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
finally:
    os.unlink(stall)
until(lambda: not is_mapped())
''', dumps(x))
reader.end()
""",
        STANDIN_STALL=str(tmp_path / "stall"),
    )


def test_what_was_received_is_closed_when_no_capture_is_open_any_more(share):
    """Work may still use it, and a capture cannot wait for that."""
    share("""
reader = Reader()
import gapless
gapless.enable()
sizes = [3000, 96 * MIB]
tensors = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
reader.does('''
card.device_behind.restype = ctypes.c_uint64
def is_mapped(addr):
    two = (ctypes.c_uint64 * 2)()
    return card.device_behind(ctypes.c_uint64(addr), ctypes.byref(two), ctypes.byref(two, 8)) != 0
for turn in range(3):
    got = [pickle.loads(one) for one in it[turn]]
    places = [one.data_ptr() for one in got]
    assert all(map(is_mapped, places))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = torch.empty(1000, device="cuda")
        del got[0]
        time.sleep(0.05)
        assert all(map(is_mapped, places)), "closed in a capture"
        got.clear()
        assert all(map(is_mapped, places)), "closed in a capture"
    until(lambda: not any(map(is_mapped, places)))
''', [[dumps(tensor) for tensor in tensors] for _ in range(3)])
reader.end()
""")
