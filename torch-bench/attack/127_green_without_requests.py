"""A thread works in a green context and never asks for memory there: it writes in place, late. Meanwhile the main
thread puts the region to sleep that is written, shrinks an elastic tensor that is written, and empties the cache.
Sleeps wait for all work, and pages are not used again before it is done, in every context. (Gapless only)"""
import threading

from common import *

if NATIVE:
    skip("regions and elastic tensors are Gapless'")
g = start(limit=1 * GIB)
try:
    from torch.cuda.green_contexts import SUPPORTED, GreenContext

    if not SUPPORTED:
        skip("this torch has no green contexts")
    green = GreenContext.create(32, 0)
except (ImportError, RuntimeError, AttributeError) as error:
    skip(f"no green contexts here: {str(error).strip().splitlines()[:1]}")
problems, mistakes, errors = [], 0, []
with g.region("written"):
    target = fill(ints(64 * MIB), 3)
pool = g.elastic_pool(limit="128MiB", page="16MiB", ahead=0)
rows, width = 64, 65536  # 16 MiB
first = g.elastic((8 * rows, width), torch.int32, pool=pool)
second = g.elastic((8 * rows, width), torch.int32, pool=pool)
first.grow(8 * rows)
first.tensor.zero_()
target.add_(0)
busy(1)
torch.cuda.synchronize()
asked, queued, TURNS = threading.Semaphore(0), threading.Semaphore(0), 10
work, finished = [None], threading.Semaphore(0)


def inside():
    """The green context's thread: kernels in place, and nothing that allocates."""
    try:
        green.set_context()
        stream = torch.cuda.current_stream()
        while True:
            asked.acquire()
            if work[0] is None:
                break
            busy(60)
            work[0]()
            queued.release()
            finished.acquire()
            stream.synchronize()
            queued.release()
        green.pop_context()
    except BaseException as error:
        errors.append(f"{type(error).__name__}: {str(error).splitlines()[0][:140] if str(error) else ''}")
        queued.release()
        queued.release()


def begin(what):
    """Queued in the green context, behind 60 ms of other work; it runs while the caller goes on."""
    work[0] = what
    asked.release()
    if not queued.acquire(timeout=30):
        done(False, "the green thread does not answer")


def end():
    finished.release()
    if not queued.acquire(timeout=30):
        done(False, "the green thread does not end")


thread = threading.Thread(target=inside, daemon=True)
thread.start()
count = 0
for turn in range(TURNS):
    # A sleep waits for the write.
    begin(lambda: target.add_(1))
    count += 1
    try:
        g.sleep("written", guard=False)
        asleep = True
    except RuntimeError as error:  # a refusal that names the stream is an answer, too
        asleep = False
        if "stream" not in str(error):
            problems.append(f"turn {turn}: {str(error)[:120]}")
    end()
    if asleep:
        junk = [ints(100 * MIB).fill_(-1) for _ in range(6)]
        del junk
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        g.wake("written")
    mistakes += int(wrong(target, 3 + count))
    if errors or problems:
        break
    # Pages of an elastic tensor that is written late do not become another's.
    rest = first.tensor[rows:]
    begin(lambda: rest.fill_(turn + 1))
    del rest
    first.shrink(7 * rows)
    second.grow(7 * rows)
    second.tensor.fill_(-5)
    torch.cuda.current_stream().synchronize()
    work[0] = lambda: None
    end()
    mistakes += int((second.tensor != -5).sum())
    second.shrink(7 * rows)
    first.grow(7 * rows)
    if errors:
        break
work[0] = None
asked.release()
thread.join(20)
problems += errors
if not errors:
    problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or f"{TURNS} turns, {mistakes} wrong elements")
