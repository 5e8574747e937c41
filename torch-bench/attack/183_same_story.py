"""One random program, with streams, pools, graphs, raw memory, failures, histories and resets, tells the same story on
both allocators: requested bytes and counts after every step, uses of pools, what lies in which pool, every entry of the
history and every exception. On torch's own allocator two runs of it are compared."""
import json
import subprocess

from common import *

LIMIT, STEPS, SEEDS = GIB, 400, 4


def observed(pools, scopes):
    """The parts of an entry that must be the same, without addresses, segments and rounding. While a pool takes
    requests, torch's own allocator does not check which frees are over."""
    torch.cuda.synchronize()
    # torch's own allocator looks at events with the next request.
    del_me = torch.empty(1, dtype=torch.uint8, device="cuda")
    del del_me
    stats = torch.cuda.memory_stats()
    story = {}
    for name in ("allocation.all", "allocation.small_pool", "allocation.large_pool"):
        for part in ("current", "peak", "allocated", "freed"):
            story[f"{name}.{part}"] = stats[f"{name}.{part}"]
    story["asked"] = stats["requested_bytes.all.allocated"]
    if not scopes:
        story["requested"] = stats["requested_bytes.all.current"]
        story["active"] = stats["active.all.current"]
    story["ooms"] = stats["num_ooms"]
    story["uses"] = [pool.use_count() for pool in pools]
    names = {tuple(pool.id): at for at, pool in enumerate(pools)}
    held = {}
    for segment in torch.cuda.memory_snapshot():
        pool = names.get(tuple(segment["segment_pool_id"]), "other" if any(segment["segment_pool_id"]) else "none")
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                held.setdefault(str(pool), []).append(block["requested_size"])
    story["held"] = {key: sorted(sizes) for key, sizes in sorted(held.items())}
    return story


def child(seed):
    g = start(limit=LIMIT)
    many_snapshots()
    r = rng(seed)
    side = [torch.cuda.Stream(priority=-(k % 2)) for k in range(3)]
    streams = {0: 0} | {s.cuda_stream: k + 1 for k, s in enumerate(side)}
    tensors, raws, pools, scopes, graphs, outputs, recording = [], [], [], [], [], [], False
    for step in range(STEPS):
        r_op = r.random()
        said = None
        try:
            if r_op < 0.30:
                size = r.choice((1, 511, 513, 4 * KIB, MIB - 1, MIB, MIB + 1, 3 * MIB, 11 * MIB, log_uniform(r, 1, 40 * MIB)))
                with torch.cuda.stream(r.choice([torch.cuda.default_stream(), *side])):
                    tensors.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            elif r_op < 0.50 and tensors:
                tensors.pop(r.randrange(len(tensors)))
            elif r_op < 0.55 and tensors:
                r.choice(tensors).record_stream(r.choice(side))
            elif r_op < 0.60:
                raws.append(torch.cuda.caching_allocator_alloc(log_uniform(r, 1, 8 * MIB), 0, r.choice(side)))
            elif r_op < 0.64 and raws:
                torch.cuda.caching_allocator_delete(raws.pop(r.randrange(len(raws))))
            elif r_op < 0.68 and len(pools) < 6:
                pools.append(torch.cuda.MemPool())
            elif r_op < 0.72 and pools and len(scopes) < 3:
                pool = r.choice([pool for pool in pools if all(pool is not other for other, _ in scopes)] or [None])
                if pool is not None:
                    scopes.append((pool, torch.cuda.use_mem_pool(pool)))
                    scopes[-1][1].__enter__()
            elif r_op < 0.77 and scopes:
                # Not always the newest.
                scopes.pop(r.randrange(len(scopes)))[1].__exit__(None, None, None)
            elif r_op < 0.80 and not scopes and len(graphs) < 5:
                graph = torch.cuda.CUDAGraph()
                pool = r.choice([None, *(p.id for p in pools), *(old.pool() for old, *_ in graphs)])
                inside = torch.zeros(1000, device="cuda")
                torch.cuda.synchronize()
                try:
                    with torch.cuda.graph(graph, pool=pool):
                        out = inside + 1
                        kept = torch.empty(r.choice((10, 2 * MIB)), dtype=torch.uint8, device="cuda")
                        if r.random() < 0.2:
                            raise ValueError("in a capture")
                    # The graph reads its input with each replay.
                    graphs.append((graph, out, inside))
                    if r.random() < 0.5:
                        outputs.append(kept)
                finally:
                    del inside, graph
                    out = kept = None
            elif r_op < 0.82 and graphs:
                graphs[r.randrange(len(graphs))][0].replay()
            elif r_op < 0.84 and graphs:
                graph, out, inside = graphs.pop(r.randrange(len(graphs)))
                if r.random() < 0.5:
                    graph.reset()
                del graph, out, inside
            elif r_op < 0.86:
                torch.empty(r.choice((2 * GIB, 1 << 50, (1 << 62) - 1)), dtype=torch.uint8, device="cuda")
            elif r_op < 0.88 and not scopes:
                torch.cuda.empty_cache()
            elif r_op < 0.90:
                torch.cuda.reset_peak_memory_stats()
            elif r_op < 0.91:
                torch.cuda.reset_accumulated_memory_stats()
            elif r_op < 0.93:
                mode = r.choice(("state", "all", None))
                torch.cuda.memory._record_memory_history(mode, context=r.choice((None, "alloc", "all")) if mode else None, stacks="python")
                recording = mode == "all"
            elif r_op < 0.95 and tensors:
                storage = r.choice(tensors).untyped_storage()
                storage.resize_(r.choice((0, 100, 5 * MIB)))
            elif r_op < 0.97 and outputs:
                outputs.pop()
            elif r_op < 0.98 and pools and not scopes:
                pools.pop(r.randrange(len(pools)))
            elif recording:
                traces = torch.cuda.memory._snapshot()["device_traces"][0]
                said = [
                    (e["action"], e["size"] if e["action"] != "snapshot" else 0, streams.get(e["stream"], "?"), bool(e.get("frames")))
                    for e in traces
                    if not e["action"].startswith("segment") and e["action"] != "free_completed"
                ]
        except BaseException as error:
            said = f"{type(error).__name__}: {str(error)[:40]}"
        print(json.dumps([step, round(r_op, 3), said, observed(pools, scopes)]), flush=True)
    while scopes:
        scopes.pop()[1].__exit__(None, None, None)


if len(sys.argv) > 1:
    child(int(sys.argv[1]))
    os._exit(0)  # torch's own allocator may abort when tensors of graphs go at the interpreter's end


def story(seed, native):
    env = os.environ | {"GAPLESS": "0" if native else "1"}
    run = subprocess.run([sys.executable, sys.argv[0], str(seed)], env=env, capture_output=True, text=True, timeout=80)
    return run.returncode, run.stdout.splitlines(), run.stderr[-2000:]


problems = []
for seed in range(SEEDS):
    code, told, errors = story(seed, NATIVE)
    code2, wanted, errors2 = story(seed, True)
    if (code, code2) != (0, 0):
        problems.append(f"seed {seed}: exit codes {code} and {code2}: {errors or errors2}")
    for mine, theirs in zip(told, wanted):
        if mine != theirs:
            (step, op, said, seen), (_, _, said2, seen2) = json.loads(mine), json.loads(theirs)
            apart = {key: (seen.get(key), seen2.get(key)) for key in seen if seen.get(key) != seen2.get(key)}
            problems.append(f"seed {seed}, step {step}, operation {op}: {said} instead of {said2}, {apart}"[:900])
            break
for problem in problems[:6]:
    print(problem)
done(not problems, f"{SEEDS} programs of {STEPS} steps, {len(problems)} differ")
