"""Several cards that reach each other in one process. A kernel of any card may use what its program handed to it: each
page of a card is granted to each card that reaches it, whichever came first, and for every kind of memory. Frees and
uses come from any thread, with any card current."""

import pytest

from test_sharing import START

CARDS = """
import random, threading, gc
card.card_can_use.argtypes = [ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64]
lib = ctypes.CDLL(os.environ["GAPLESS_LIBRARY"])

def usable(tensor):
    storage = tensor.untyped_storage()
    return [card.card_can_use(user, storage.data_ptr(), storage.nbytes()) for user in range(CARDS)]
"""


@pytest.fixture
def cards(real):
    def run(program, count, peers=True, **environment):
        environment.update(GAPLESS_CARDS=str(count), STANDIN_PEERS="1" if peers else None, STANDIN_CAPACITY=str(8 << 30))
        return real.passes(START + f"CARDS = {count}\n" + CARDS + program, cold=True, **environment).lines()

    return run


@pytest.mark.parametrize("peers", [True, False])
def test_memory_of_every_kind_is_granted_whenever_a_card_comes(cards, peers):
    lines = cards(
        """
sender = Reader()
import gapless
assert gapless.enable(), gapless.disable_reason()
def everything(device):
    torch.cuda.set_device(device)
    made = {"small": torch.empty(1000, dtype=torch.uint8, device="cuda"), "large": torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")}
    with gapless.region(f"r{device}"):
        made["region"] = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        made["pool"] = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    cache = gapless.elastic((32, MIB), torch.uint8, device=f"cuda:{device}")
    cache.grow(8)
    made["elastic"] = cache.tensor[:8]
    kept.append((pool, cache))
    return made
kept = []
# Free pages apart from each other become a window.
first = everything(0)
got = sender.does("torch.cuda.set_device(0); x = torch.empty(40 * MIB, dtype=torch.uint8, device='cuda'); answer = dumps(x)")
first["received"] = pickle.loads(got)
assert usable(first["large"]) == [1] + [0] * (CARDS - 1), "the others are not used yet"
every = {0: first}
for device in range(1, CARDS):
    every[device] = everything(device)
for device in range(CARDS):
    torch.cuda.set_device(device)
    kept[device][1].grow(8)
    every[device]["grown"] = kept[device][1].tensor[:16]
    every[device]["later"] = torch.empty(70 * MIB, dtype=torch.uint8, device="cuda")
    gapless.sleep(f"r{device}"); gapless.wake(f"r{device}")
wanted = lambda device: [1] * CARDS if PEERS else [int(user == device) for user in range(CARDS)]
wrong = [(device, kind, usable(tensor)) for device in every for kind, tensor in every[device].items() if usable(tensor)[:] != wanted(device)]
print(wrong)
del first["received"]
sender.end()
""".replace("PEERS", str(peers)),
        3,
        peers,
    )
    assert lines == ["[]"]


def test_a_card_that_serves_any_thread_reaches_what_there_is(cards):
    # A card is made once in a process, so each try has a process of its own, with two threads for each card.
    lines = cards(
        """
import gapless
def tries():
    assert gapless.enable(), gapless.disable_reason()
    kept, wrong, start = [], [], threading.Barrier(2 * CARDS)
    for _ in range(60):
        kept.append(torch.empty(30 << 20, dtype=torch.uint8, device="cuda:0"))
    def work(device):
        start.wait(60)
        mine = torch.empty(1 << 20, dtype=torch.uint8, device=f"cuda:{device}")
        there = list(kept)
        wrong.extend((device, tensor.device.index) for tensor in there if not usable(tensor)[device])
        kept.append(mine)
    threads = [threading.Thread(target=work, args=(number % CARDS,)) for number in range(2 * CARDS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong
for _ in range(12):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            said = repr(tries()[:3])
        except BaseException as error:
            said = repr(error)
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    print(os.read(read, 1000).decode())
""",
        4,
    )
    assert lines == ["[]"] * 12


# Threads with any card current; what each does is drawn.
RANDOM = """
import gapless
assert gapless.enable(limit="2GiB"), gapless.disable_reason()
stop, problems, shared, lock, done = time.monotonic() + 6, [], [], threading.Lock(), [0] * THREADS

def work(number):
    r = random.Random(SEED * 100 + number)
    mine, caches = [], []
    try:
        while done[number] < STEPS and time.monotonic() < stop:
            done[number] += 1
            current, of = r.randrange(CARDS), r.randrange(CARDS)
            torch.cuda.set_device(current)
            action = r.random()
            if action < 0.45:
                size = r.choice((r.randrange(1, 1 << 20), r.randrange(1 << 20, 30 << 20)))
                mine.append(torch.empty(size, dtype=torch.uint8, device=f"cuda:{of}"))
            elif action < 0.65 and mine:
                # Another thread frees it, with another card current.
                with lock:
                    shared.append(mine.pop(r.randrange(len(mine))))
                    if len(shared) > 20:
                        r.shuffle(shared)
                        del shared[:10]
            elif action < 0.80 and mine:
                # A stream of another card uses it.
                r.choice(mine).record_stream(torch.cuda.Stream(device=of))
                mine.pop(r.randrange(len(mine)))
            elif action < 0.86:
                # Peers that torch enables itself.
                there, here = (torch.empty(1000, dtype=torch.uint8, device=f"cuda:{device}") for device in (of, current))
                there.copy_(here)
            elif action < 0.92:
                if not caches:
                    caches.append((of, gapless.elastic((64, 1 << 21), torch.uint8, device=f"cuda:{of}")))
                cache = caches[0][1]
                cache.grow(r.randrange(1, 8)) if cache.size < 40 else cache.shrink(cache.size - 2)
            elif action < 0.94:
                torch.cuda.empty_cache()
            elif action < 0.96:
                torch.cuda.memory_stats(of), torch.cuda.memory_snapshot()
            while len(mine) > 30:
                mine.pop(0)
            # Collectives in the process read and write the buffers of other cards directly.
            if mine and len(met) == CARDS:
                x = r.choice(mine)
                if usable(x) != [1] * CARDS:
                    problems.append(f"{x.device} {x.numel()}: {usable(x)}")
            if problems:
                return
    except BaseException as error:
        problems.append(f"{type(error).__name__}: {str(error)[:300]}")

met = []
threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(THREADS)]
for thread in threads:
    thread.start()
for device in range(CARDS):
    torch.empty(1, device=f"cuda:{device}")
    met.append(device)
for thread in threads:
    thread.join(60)
print(f"{[t.is_alive() for t in threads].count(True)} hang", problems[:2])
shared.clear()
gc.collect()
torch.cuda.empty_cache()
print([torch.cuda.memory_allocated(device) for device in range(CARDS)])
print(sum(done) > 100)
"""


@pytest.mark.parametrize("count", [2, 3, 4])
def test_threads_with_any_card_current_allocate_free_and_use(cards, count):
    lines = cards(RANDOM.replace("SEED", str(count)).replace("THREADS", "5").replace("STEPS", "4000"), count)
    assert lines == ["0 hang []", str([0] * count), "True"]


def test_a_use_by_another_cards_stream_is_waited_for_and_no_other(cards):
    lines = cards(
        """
import gapless
assert gapless.enable(), gapless.disable_reason()
x, y = (torch.empty(MIB, dtype=torch.uint8, device=f"cuda:{device}") for device in range(2))
more = [torch.empty(MIB, dtype=torch.uint8, device=f"cuda:{device}") for device in range(2)]
card.card_hold(1)
x.record_stream(torch.cuda.Stream(device=1))
used, free = x.data_ptr(), y.data_ptr()
del x, y
again = [torch.empty(MIB, dtype=torch.uint8, device=f"cuda:{device}").data_ptr() for device in range(2)]
print(again[0] != used, again[1] == free)
card.card_hold(0)
print(any(torch.empty(MIB, dtype=torch.uint8, device="cuda:0").data_ptr() == used for _ in range(3)))
""",
        2,
    )
    assert lines == ["True True", "True"]
