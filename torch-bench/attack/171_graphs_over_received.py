"""An engine captures graphs that read weights of another process in place, and replays them while the trainer updates
the weights in place, allocates, trains, empties its cache and frees all that it does not share. Interprocess events
order both sides, in both directions. Every replay sees the weights of its turn; then both drop everything."""
import base64
import pickle
import subprocess
import sys

from common import *

WIDTH, LAYERS, TURNS = 512, 8, 25


def value(turn, k):
    return (3 * turn + k) % 11 - 5


if len(sys.argv) > 1:
    start(limit=1 * GIB)
    told, event = pickle.loads(base64.b64decode(sys.stdin.readline()))
    weights = [function(*args) for function, args in told]
    ready = torch.cuda.Event.from_ipc_handle(0, event)
    read = torch.cuda.Event(interprocess=True)
    x = torch.ones(64, WIDTH, device="cuda")
    pool, graphs = torch.cuda.graph_pool_handle(), []
    (x @ weights[0]).sum()
    torch.cuda.synchronize()
    for rows in (64, 16, 1):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            sums = torch.stack([(x[:rows] @ w).sum() for w in weights])
        graphs.append((graph, sums, rows))
    read.record()
    torch.cuda.synchronize()
    print(base64.b64encode(read.ipc_handle()).decode(), flush=True)
    r = rng(171)
    for line in sys.stdin:
        turn, bad = int(line), 0
        torch.cuda.current_stream().wait_event(ready)
        for graph, sums, rows in graphs:
            graph.replay()
            junk = [ints(log_uniform(r, 512, 8 * MIB)).fill_(-1) for _ in range(3)]
            del junk
            want = torch.tensor([float(rows * WIDTH * WIDTH * value(turn, k)) for k in range(LAYERS)])
            bad += int((sums.cpu() != want).sum())
        read.record()
        print("read", bad, flush=True)
        if turn % 6 == 5:
            torch.cuda.empty_cache()
    del graphs, sums, graph, weights
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    print("end", torch.cuda.memory_allocated() - x.numel() * 4, flush=True)
    os._exit(0)

from torch.multiprocessing.reductions import reduce_tensor

g = start(limit=2 * GIB)
torch.backends.cuda.matmul.allow_tf32 = False
problems, mistakes, r = [], 0, rng(1710)
weights = [torch.full((WIDTH, WIDTH), float(value(0, k)), device="cuda") for k in range(LAYERS)]
ready = torch.cuda.Event(interprocess=True)
ready.record()
torch.cuda.synchronize()
engine = subprocess.Popen([sys.executable, "-W", "ignore", os.path.abspath(__file__), "engine"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tell(text):
    engine.stdin.write(text + "\n")
    engine.stdin.flush()


tell(base64.b64encode(pickle.dumps(([reduce_tensor(w) for w in weights], ready.ipc_handle()))).decode())
line = engine.stdout.readline()
try:
    read = torch.cuda.Event.from_ipc_handle(0, base64.b64decode(line))
except Exception as error:
    engine.kill()
    done(False, f"the engine said {line[:200]!r} ({type(error).__name__})")
for turn in range(1, TURNS):
    torch.cuda.current_stream().wait_event(read)  # the engine's reads of the turn before
    for k, w in enumerate(weights):
        w.fill_(float(value(turn, k)))
    ready.record()
    tell(str(turn))
    # It allocates and frees memory of its own beside.
    junk = [fill(ints(log_uniform(r, 4096, 60 * MIB)), k) for k in range(10)]
    wrongs = [wrong(x, k) for k, x in enumerate(junk)]
    del junk
    mistakes += sum(int(w) for w in wrongs)
    if turn % 4 == 0:
        torch.cuda.empty_cache()
    words = engine.stdout.readline().split()
    if words[:1] != ["read"]:
        problems.append(f"turn {turn}: {' '.join(words)[:200] or 'no answer'}")
        break
    mistakes += int(words[1])
engine.stdin.close()
words = engine.stdout.readline().split()
if not problems and words[:1] != ["end"]:
    problems.append("the engine does not end")
engine.wait(20)
del weights, w
torch.cuda.ipc_collect()
problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:2]) or f"{TURNS} turns, {mistakes} wrong sums or elements")
