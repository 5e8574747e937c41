"""A forked child asks torch's questions about memory that need no CUDA call natively: snapshots, peaks, histories,
pools. It is answered or refused at once, whatever the parent's threads, and the allocator's own, were doing when it was
forked; and it makes no call of the driver, which does not survive a fork."""
import signal
import tempfile

from common import *

g = start(limit=GIB)
many_snapshots()
side, r = torch.cuda.Stream(), rng(5)
pool, kept, folder = torch.cuda.MemPool(), [], tempfile.mkdtemp()
with torch.cuda.use_mem_pool(pool):
    kept.append(ints(3 * MIB))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    kept.append(ints(MIB))
mine = [ints(2 * MIB) for _ in range(50)]


def drop():
    # Of which another stream was told, so that its end waits for work.
    x = mine.pop()
    x.record_stream(side)


QUESTIONS = {
    "snapshot": lambda: torch.cuda.memory_snapshot(),
    "whole snapshot": lambda: torch.cuda.memory._snapshot(),
    "file": lambda: torch.cuda.memory._dump_snapshot(f"{folder}/{os.getpid()}.pickle"),
    "pool": lambda: torch.cuda.memory_snapshot(pool.id),
    "uses": lambda: pool.use_count(),
    "peaks": lambda: torch.cuda.reset_peak_memory_stats(),
    "totals": lambda: torch.cuda.reset_accumulated_memory_stats(),
    "stats": lambda: torch.cuda.memory_stats(),
    "history begins": lambda: torch.cuda.memory._record_memory_history("all"),
    "history ends": lambda: torch.cuda.memory._record_memory_history(None),
    "empty": lambda: torch.cuda.empty_cache(),
    "collect": lambda: torch.cuda.ipc_collect(),
    "drop": drop,
    "summary": lambda: torch.cuda.memory_summary(),
    "allocated": lambda: (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()),
    "context": lambda: torch._C._cuda_getAllocatorBackend() if hasattr(torch._C, "_cuda_getAllocatorBackend") else None,
}
stuck, count, refused = {}, 0, {}
end = time.monotonic() + 12
while time.monotonic() < end and not stuck:
    for name, ask in QUESTIONS.items():
        # Frees that wait for work, which a look at them asks the driver about.
        with torch.cuda.stream(side):
            busy(1)
        x = ints(log_uniform(r, 512, 4 * MIB))
        x.record_stream(side)
        del x
        for _ in range(r.randrange(4)):
            ints(600)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            code = 0
            try:
                ask()
            except Exception as error:
                code = 3
                if os.environ.get("SHOW"):
                    print(name, repr(error)[:100], flush=True)
            os._exit(code)
        _, status = os.waitpid(child, 0)
        count += 1
        if os.WIFSIGNALED(status):
            stuck[name] = signal.Signals(os.WTERMSIG(status)).name
        elif os.WEXITSTATUS(status):
            refused[name] = refused.get(name, 0) + 1
problems = [f"{name}: {how}" for name, how in stuck.items()] + adds_up()
graph.replay()
torch.cuda.synchronize()
for problem in problems[:6]:
    print(problem)
done(not problems, f"{count} children asked, {len(problems)} problems; refused: {sorted(refused)}")
