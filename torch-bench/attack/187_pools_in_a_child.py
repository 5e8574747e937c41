"""Forked children that end a MemPool of their parent, which has no memory: none crashes or hangs, and the parent has
everything as it was. On a card, torch's own allocator ends a child that drops tensors or leaves through Python's
end."""
import gc
import signal

from common import *

g = start(limit=GIB)
# A child that exits would wait for its thread, which the child does not have.
faulthandler.cancel_dump_traceback_later()


class Holder:
    """The memory of a program. Its pools have none free, because torch's own allocator would give that back."""

    def __init__(self):
        self.empty = torch.cuda.MemPool()
        self.pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self.pool):
            self.inside = fill(ints(20 * MIB), 7)
        self.plain = [fill(ints(size), 9) for size in (700, 3 * MIB, 20 * MIB)]
        self.used = fill(ints(2 * MIB), 11)
        self.used.record_stream(torch.cuda.Stream())
        self.event = torch.cuda.Event()
        self.event.record()
        self.me = self


def drop_pool(holder):
    holder.empty = None
    os._exit(0)


def collect_pool(holder):
    holder.empty = [holder.empty]
    holder.empty.append(holder.empty)
    holder.empty = None
    gc.collect()
    os._exit(0)


WAYS = (drop_pool, collect_pool)
problems, count = [], 0
holder = Holder()
torch.cuda.synchronize()
allocated = torch.cuda.memory_allocated()
for turn in range(6):
    for way in WAYS:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            way(holder)
            os._exit(5)
        _, status = os.waitpid(child, 0)
        count += 1
        if status:
            problems.append(f"{way.__name__} ended with {status}")
    if int(wrong(holder.inside, 7)) or int(wrong(holder.used, 11)) or sum(int(wrong(x, 9)) for x in holder.plain):
        problems.append("bytes of the parent changed")
    if torch.cuda.memory_allocated() != allocated:
        problems.append("the parent's books changed")
problems += adds_up()
for problem in problems[:6]:
    print(problem)
done(not problems, f"{count} children ended, {len(problems)} problems")
