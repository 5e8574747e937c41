"""Children that are forked while threads of the parent are inside the allocator may ask Gapless for figures, mark steps
and drop tensors; none of them waits for a lock whose holder is not in the child. (Gapless only)"""
import signal
import threading

from common import *

if NATIVE:
    skip("these questions are Gapless'")
g = start(limit=2 * GIB)
stop, errors = threading.Event(), []


def worker(k):
    """Always inside the allocator."""
    r, kept = rng(k), []
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            while not stop.is_set():
                kept.append(ints(log_uniform(r, 512, 24 * MIB)))
                if len(kept) > 10:
                    kept.pop(r.randrange(10))
                if r.random() < 0.3:
                    g.stats()
                    torch.cuda.memory_stats()
                    torch.cuda.empty_cache()
    except BaseException as error:
        errors.append(repr(error)[:160])


questions = {
    "stats": lambda: g.stats(),
    "step": lambda: g.step(),
    "enabled": lambda: (g.enabled(), g.disable_reason(), g.version()),
    "regions": lambda: g.regions(),
    "trim": lambda: g.trim(),
    "memory_allocated": lambda: (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()),
    "figures": lambda: __import__("gapless.integrations", fromlist=["figures"]).figures(),
    "drop": lambda: mine.pop(),
}
mine = [ints(3 * MIB) for _ in range(4)]
threads = [threading.Thread(target=worker, args=(k,)) for k in range(3)]
for t in threads:
    t.start()
stuck, broken, count = {}, {}, 0
end = time.monotonic() + 8
while time.monotonic() < end and not stuck:
    for name, ask in questions.items():
        child = os.fork()
        if child == 0:
            signal.alarm(8)  # ends it if it waits for ever
            try:
                ask()
            except Exception:
                pass  # a refusal is an answer
            os._exit(0)
        _, status = os.waitpid(child, 0)
        count += 1
        if os.WIFSIGNALED(status):
            kind = stuck if os.WTERMSIG(status) == signal.SIGALRM else broken
            kind[name] = kind.get(name, 0) + 1
stop.set()
for t in threads:
    t.join(30)
torch.cuda.synchronize()
problems = adds_up() + errors
ok = not stuck and not broken and not problems
done(ok, f"{count} children; stuck: {stuck or 'none'}, killed: {broken or 'none'} {problems[:2]}")
