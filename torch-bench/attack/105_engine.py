"""An inference engine's life: a profile run whose peak sizes the cache, graphs of 20 batch sizes in one pool with the
largest first, decoding between eager prefills, sleep and waking (on Gapless), weights that are loaded anew in place.
Every output is the host's."""
from contextlib import nullcontext

from common import *

LIMIT = 3 * GIB
g = start(limit=LIMIT)
r, mistakes, problems = rng(105), 0, []
width, layers, vocab = 1024, 6, 4096
scope = (lambda name, keep="host": g.region(name, keep=keep)) if g else (lambda name, keep="host": nullcontext())


def says(ok, text):
    if not ok:
        problems.append(text)


def loaded(version):
    """Integers, so that sums are exact in any order."""
    for k, w in enumerate(weights):
        index = torch.arange(width, dtype=torch.int64, device="cuda")
        w.copy_(((index[:, None] * (k + 3) + index[None, :] * (version + 1)) % 5 - 2).float())


with scope("weights"):
    weights = [torch.empty(width, width, device="cuda") for _ in range(layers)]
    loaded(0)


def forward(tokens, cache, slots):
    """Writes one row of the cache for each token and sums what it has: values stay small integers."""
    h = (tokens[:, None] % 7 + torch.arange(width, device="cuda") % 3).float()
    for w in weights:
        h = torch.remainder(h @ w, 8.0)
    if cache is not None:
        cache[slots] = h.to(torch.int32)
        return cache[slots].sum(1)
    return h.sum(1)


def reference(tokens, version):
    index = torch.arange(width)
    h = (tokens[:, None] % 7 + index % 3).double()
    for k in range(layers):
        w = ((index[:, None] * (k + 3) + index[None, :] * (version + 1)) % 5 - 2).double()
        h = torch.remainder(h @ w, 8.0)
    return h.long().sum(1)


torch.backends.cuda.matmul.allow_tf32 = False
answers = {}


def want(tokens, version):
    """By value of a token modulo 7: there are seven answers."""
    if version not in answers:
        answers[version] = reference(torch.arange(7), version)
    return answers[version][tokens.cpu() % 7]


with torch.inference_mode():
    # The profile run, as engines do it.
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    forward(torch.randint(0, vocab, (8192,), device="cuda"), None, None)
    torch.cuda.synchronize()
    says(torch.cuda.mem_get_info()[0] > 0, "the card has nothing free")
    peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"]
    torch.cuda.empty_cache()
    says(peak > sum(w.numel() * 4 for w in weights), "the peak is less than the weights")
    room = LIMIT - peak - 700 * MIB
    rows = room // (width * 4)
    with scope("cache", "discard"):
        cache = torch.zeros(rows, width, dtype=torch.int32, device="cuda")
    says(torch.cuda.memory_reserved() <= LIMIT, "more is reserved than the limit")
    batches = [1, 2, 4] + [8 * k for k in range(1, 18)]
    with scope("weights"):
        pool, graphs = torch.cuda.graph_pool_handle(), {}
        tokens = torch.zeros(max(batches), dtype=torch.int64, device="cuda")
        slots = torch.arange(max(batches), device="cuda")
        for size in sorted(batches, reverse=True):
            forward(tokens[:size], cache, slots[:size])
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                out = forward(tokens[:size], cache, slots[:size])
            graphs[size] = (graph, out)
    version, sleeps, steps, end = 0, 0, 0, time.monotonic() + 7
    while time.monotonic() < end and mistakes == 0 and not problems:
        if steps % 3 == 0:  # a prefill of some length, eagerly, between replays
            prompt = torch.randint(0, vocab, (log_uniform(r, 16, 8192),), device="cuda")
            place = torch.tensor(r.sample(range(500, rows), prompt.numel()), device="cuda")
            found = forward(prompt, cache, place)
            mistakes += int((found.cpu() != want(prompt, version)).sum())
            held = cache[place[:64]].sum(1).cpu()
            mistakes += int((held != want(prompt[:64], version)).sum())
            del prompt, place, found
        size = batches[r.randrange(len(batches))]
        asked = torch.randint(0, vocab, (size,), device="cuda")
        tokens[:size].copy_(asked)
        graph, out = graphs[size]
        graph.replay()
        mistakes += int((out.cpu() != want(asked, version)).sum())
        steps += 1
        if steps % 40 == 20:
            if g is not None:
                g.sleep("weights", guard=False)
                g.sleep("cache", guard=False)
                torch.cuda.empty_cache()
                with scope("trainer"):
                    big = fill(ints(2 * GIB), steps)
                mistakes += int(wrong(big, steps))
                del big
                torch.cuda.empty_cache()
                g.wake("weights")
                if sleeps % 2:  # new weights before the cache is there
                    version += 1
                    loaded(version)
                g.wake("cache")
                cache.zero_()
            else:
                version += sleeps % 2
                loaded(version)
            sleeps += 1
torch.cuda.synchronize()
problems += adds_up()
ok = mistakes == 0 and not problems and steps > 5
done(ok, f"{rows} rows, {steps} steps, {sleeps} sleeps, {mistakes} wrong; {problems[:3]}")
