"""One thread captures streams of its own through the driver, one short capture after another, unannounced. Three
threads ask for memory on other streams meanwhile, free it, announce it and trim: every one of their calls may meet the
beginning or the end of a capture. First streams that wait for no other one are captured, while the program asks for
memory on the default stream too; then streams that wait for the default one, while the program uses that for nothing
and announces nothing: CUDA refuses every call with it beside such a capture, and torch's events ask for its state. No
capture is ended from outside, and no block is written by two."""
import ctypes
import threading

from common import *

g = start(limit=2 * GIB)
cuda, pointer = driver(), ctypes.c_void_p
standin = hasattr(cuda, "card_begin_capture")
captures, problems, wrongs = [0], [], []
BLOCKING, NONBLOCKING = 0, 1
scratch = torch.zeros(1 << 12, dtype=torch.int32, device="cuda")
torch.cuda.synchronize()


def begin(stream):
    if standin:
        return cuda.card_begin_capture(ctypes.c_uint64(stream))
    return cuda.cuStreamBeginCapture_v2(pointer(stream), ctypes.c_int(2))  # relaxed


def end(stream):
    """The status, and how many nodes the graph has."""
    if standin:
        return cuda.card_end_capture(ctypes.c_uint64(stream)), 1
    graph, count = pointer(), ctypes.c_size_t()
    status = cuda.cuStreamEndCapture(pointer(stream), ctypes.byref(graph))
    if graph.value:
        cuda.cuGraphGetNodes(graph, None, ctypes.byref(count))
        cuda.cuGraphDestroy(graph)
    return status, count.value


def capture(streams, over):
    torch.cuda.set_device(0)
    turn = 0
    while not over.is_set() and not problems:
        turn += 1
        stream = streams[turn % 2]
        status = begin(stream)
        if status:
            problems.append(f"capture {turn} cannot begin: {status}")
            return
        if not standin:
            cuda.cuMemsetD32Async(ctypes.c_uint64(scratch.data_ptr()), ctypes.c_uint(7), ctypes.c_size_t(64), pointer(stream))
        if turn % 8 == 0:
            time.sleep(0.0005)
        status, nodes = end(stream)
        if status or nodes != 1:
            problems.append(f"capture {turn} was ended from outside: {status}, {nodes} nodes")
            return
        captures[0] += 1


def churn(seed, streams, until, announces):
    """Memory goes from one stream to the other: of sizes that drift, some of it used by both."""
    r, held = rng(seed), []
    try:
        torch.cuda.set_device(0)
        for turn in range(750):
            if problems or time.monotonic() > until:
                break
            mine, other = streams if turn % 2 else streams[::-1]
            with torch.cuda.stream(mine):
                held.append((ints(r.randrange(1, 30) * MIB).fill_(turn), turn, mine))
            if turn % 3 == 0 and announces:
                other.wait_stream(mine)
                held[-1][0].record_stream(other)
            if len(held) > 4:
                x, mark, stream = held.pop(r.randrange(len(held)))
                if turn % 40 == 0 and not standin:
                    with torch.cuda.stream(stream):
                        wrongs.append((x != mark).sum())
                del x
    except BaseException as error:
        problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")


def phase(flags, own):
    """The captures of two streams with such flags beside requests on `own` and others."""
    captured, over = [new_stream(cuda, flags) for _ in range(2)], threading.Event()
    torch.cuda.synchronize()
    until = time.monotonic() + 20
    threads = [threading.Thread(target=churn, args=(seed, pair, until, flags == NONBLOCKING)) for seed, pair in enumerate(((A, B), (B, C), (C, D)))]
    capturing = threading.Thread(target=capture, args=(captured, over))
    [thread.start() for thread in [capturing, *threads]]
    with torch.cuda.stream(own):
        while any(thread.is_alive() for thread in threads):
            # It only requests memory, and runs no kernels on the default stream.
            asked = [ints(size * MIB) for size in (3, 9, 27)]
            del asked
            if standin:
                time.sleep(0.001)
    over.set()
    [thread.join(50) for thread in [*threads, capturing]]
    torch.cuda.synchronize()


A, B, C, D, E = (torch.cuda.Stream() for _ in range(5))
counts = []
for flags, own in ((NONBLOCKING, torch.cuda.default_stream()), (BLOCKING, E)):
    before = captures[0]
    phase(flags, own)
    counts.append(captures[0] - before)
bad = sum(int(w) for w in wrongs)
text = problems[0] if problems else f"{counts} captures whole, {bad} wrong elements, lent {counters(g).get('gapless.pages_lent')}"
done(not problems and bad == 0 and min(counts) > 0, text)
