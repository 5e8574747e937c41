"""A MemPool whose free memory lies in pieces serves larger requests from them: tensors keep their bytes beside readers
on other streams, graphs in a pool of their own, threads with pools of their own, and the pool's end; books add up."""
import gc
import threading

from common import *

if not hasattr(torch.cuda, "MemPool"):
    skip("this torch has no MemPool")
g = start(limit=3 * GIB)
problems, lock = [], threading.Lock()
mistakes, steps = 0, 0


def says(ok, text):
    if not ok:
        with lock:
            problems.append(text)


def program(seed, count, with_graphs, together=None):
    """A random life in a pool of its own."""
    global mistakes, steps
    r, bad, done_steps = rng(seed), [], 0
    pool, held, graphs = torch.cuda.MemPool(), [], []
    # Not the same pool: a replay writes over what is allocated there outside of graphs.
    beside = torch.cuda.MemPool()
    mine, reader = torch.cuda.Stream(), torch.cuda.Stream()
    totals = []
    with torch.cuda.stream(mine):
        for step in range(count):
            with torch.cuda.use_mem_pool(pool):
                if len(held) < 4 or (r.random() < 0.55 and len(held) < 24):
                    size = r.randrange(1, 5) * 3 * MIB if r.random() < 0.7 else r.randrange(12, 40) * MIB
                    held.append((fill(ints(size), step), step))
                else:
                    # Every other one goes: what is free lies in pieces.
                    for at in range(len(held) - 1, -1, -2):
                        y, s = held.pop(at)
                        if r.random() < 0.3:  # read elsewhere, and freed before that is done
                            reader.wait_stream(mine)
                            with torch.cuda.stream(reader):
                                busy(1)
                                totals.append(wrong(y, s))
                            y.record_stream(reader)
                        else:
                            bad.append(wrong(y, s))
                        del y
            if with_graphs and step % 40 == 20:
                n, graph = 700_000 * (1 + step % 3), torch.cuda.CUDAGraph()
                x = torch.zeros(n, dtype=torch.int32, device="cuda")
                with torch.cuda.graph(graph, pool=beside.id, stream=mine):
                    parts = [x + i for i in range(6)]
                    kept = parts[::2]
                    del parts
                    out = torch.cat(kept)
                    del kept
                graphs.append((graph, x, out, n))
            if graphs and step % 10 == 0:
                graph, x, out, n = graphs[-1]  # a later graph may write over the results of earlier ones
                x.fill_(step)
                graph.replay()
                for at in range(3):
                    bad.append((out[at * n : (at + 1) * n] != step + 2 * at).sum())
            done_steps += 1
        graph = x = out = None
        graphs.clear()
        for y, s in held[::2]:
            bad.append(wrong(y, s))
        y = None
        del held[::2]
        if together is not None:  # torch's own allocator does not let a pool end while another takes requests
            together.wait(60)
        pool = None  # with live tensors
        gc.collect()
        for y, s in held:
            bad.append(wrong(y, s))
        y = None
        held.clear()
    mine.synchronize()
    reader.synchronize()
    total = sum(int(b) for b in bad) + sum(int(t) for t in totals)
    with lock:
        mistakes += total
        steps += done_steps


program(1, 200, False)
problems += adds_up()
program(2, 200, True)
problems += adds_up()
together = threading.Barrier(3)
threads = [threading.Thread(target=program, args=(10 + k, 120, False, together)) for k in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
    says(not thread.is_alive(), "a thread does not end")
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
problems += adds_up()
says(torch.cuda.memory_allocated() <= 32 * MIB, f"{torch.cuda.memory_allocated() >> 20} MiB stay allocated")
says(torch.cuda.memory_reserved() <= 96 * MIB, f"{torch.cuda.memory_reserved() >> 20} MiB stay reserved")
if g is not None:
    says(g.stats()["gapless.graph_windows_made"] > 0, "no window was made")
text = f"{steps} steps in five pools, {mistakes} wrong elements"
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or text)
