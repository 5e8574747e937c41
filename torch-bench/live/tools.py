"""torch's own tools and the hard cases on a real GPU, with Gapless as the allocator: one line a check, PASS or FAIL
with the reason.

usage: python torch-bench/live/tools.py [--native] [--no-values] [name ...]

Needs torch, and Gapless: installed, or with GAPLESS_LIBRARY naming the library and PYTHONPATH the folder python/. With
--native the same checks run on torch's own allocator: what fails there too is not about Gapless. With --no-values what
memory holds is not looked at, for a card that holds nothing (torch-bench/python). Names choose checks. Exit 1 when one
fails. Under 90 seconds.
"""

import gc
import os
import pickle
import sys
import tempfile
import threading
import time
import traceback

import torch

MIB = 1 << 20
CHECKS = []
NATIVE = "--native" in sys.argv
VALUES = "--no-values" not in sys.argv


def check(function):
    CHECKS.append(function)
    return function


def of(size, **how):
    return torch.empty(size, dtype=torch.uint8, device="cuda", **how)


def expect(condition, *what):
    if not condition:
        raise AssertionError(" ".join(str(item) for item in what) or "not so")


def holds(condition, *what):
    """Expects a condition on the contents of memory; without VALUES it passes."""
    expect(condition or not VALUES, *what)


def fails(kind, call, part=""):
    try:
        call()
    except kind as error:
        expect(part in str(error), "another message:", error)
    else:
        raise AssertionError(f"no {kind.__name__}")


def adds_up():
    """Every sum that a snapshot must keep."""
    segments, stats = torch.cuda.memory_snapshot(), torch.cuda.memory_stats()
    for key, name in (("total_size", "reserved"), ("allocated_size", "allocated"), ("active_size", "active"), ("requested_size", "requested")):
        total = sum(s[key] for s in segments)
        expect(total == stats[f"{name}_bytes.all.current"], name, total, stats[f"{name}_bytes.all.current"])
    for s in segments:
        expect(sum(b["size"] for b in s["blocks"]) == s["total_size"], "blocks do not fill the segment at", hex(s["address"]))
    return segments


# ---- statistics ----


@check
def stats():
    before = torch.cuda.memory_allocated()
    x = of(40 * MIB)
    expect(torch.cuda.memory_allocated() - before == 40 * MIB)
    s = torch.cuda.memory_stats()
    for name in ("allocation", "allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "segment"):
        parts = s[f"{name}.small_pool.current"] + s[f"{name}.large_pool.current"]
        expect(parts == s[f"{name}.all.current"], name, parts, s[f"{name}.all.current"])
    del x
    torch.cuda.reset_peak_memory_stats()
    expect(torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == before)
    torch.cuda.reset_accumulated_memory_stats()
    expect(torch.cuda.memory_stats()["allocation.all.allocated"] == 0)
    expect("PyTorch CUDA memory summary" in torch.cuda.memory_summary())


@check
def accelerator():
    x = of(8 * MIB)
    a = torch.accelerator
    expect(a.memory_allocated() == torch.cuda.memory_allocated() > 0)
    mine = torch.cuda.memory_stats()
    expect(all(mine[key] == value for key, value in a.memory_stats().items()))
    expect(a.memory_reserved() == torch.cuda.memory_reserved() and a.max_memory_allocated() >= 8 * MIB)
    del x
    a.reset_peak_memory_stats()
    a.empty_cache()
    free, total = a.get_memory_info()
    expect(0 < free <= total)


@check
def fraction():
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 256 * MIB) / total)
    try:
        fails(torch.OutOfMemoryError, lambda: of(2048 * MIB))
        of(64 * MIB)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    expect(torch.cuda.get_per_process_memory_fraction() == 1.0)


# ---- snapshots ----


def churn(steps=300, seed=1):
    generator = torch.Generator().manual_seed(seed)
    number = lambda n: int(torch.randint(n, (1,), generator=generator))  # noqa: E731
    kept = []
    for _ in range(steps):
        if len(kept) < 20 or number(2):
            size = 1 + number(MIB if number(2) else 48 * MIB)
            x = of(size)
            mark = number(251)
            x[:1] = mark
            x[-1:] = mark
            kept.append((x, mark))
        else:
            x, mark = kept.pop(number(len(kept)))
            holds(x[0].item() == mark and x[-1].item() == mark, "a block was overwritten")
    return kept


@check
def snapshot():
    kept = churn()
    segments = adds_up()
    live = {b["address"] for s in segments for b in s["blocks"] if b["state"] == "active_allocated"}
    expect({x.data_ptr() for x, _ in kept} <= live, "a live tensor is not shown")
    for x, mark in kept:
        holds(x[0].item() == mark and x[-1].item() == mark, "a block was overwritten")


@check
def history():
    memory = torch.cuda.memory
    memory._record_memory_history(context="all", max_entries=100_000)
    try:

        def a_name_to_find():
            return of(33 * MIB)

        x = a_name_to_find()
        address = x.data_ptr()
        del x
        churn(200, seed=2)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.pickle")
            memory._dump_snapshot(path)
            with open(path, "rb") as file:
                data = pickle.load(file)
    finally:
        memory._record_memory_history(None)
    entries = [t for t in data["device_traces"][0] if t.get("addr") == address and t["size"] == 33 * MIB]
    kinds = [t["action"] for t in entries if "segment" not in t["action"]]
    expect(kinds[:3] == ["alloc", "free_requested", "free_completed"], kinds[:5])
    first = next(t for t in entries if t["action"] == "alloc")
    expect(any("a_name_to_find" in f["name"] for f in first["frames"]), "the stack is not there")
    from torch.cuda import _memory_viz

    expect("html" in _memory_viz.trace_plot(data) and "html" in _memory_viz.segment_plot(data))
    expect(not torch.cuda.memory._snapshot()["device_traces"][0], "the history goes on")


# ---- pools ----


@check
def mem_pool():
    before = torch.cuda.memory_reserved()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((4 * MIB,), 3.0, device="cuda")
        y = x * 2
    expect(pool.use_count() == 1)
    expect({tuple(s["segment_pool_id"]) for s in pool.snapshot()} == {tuple(pool.id)})
    others = [of(16 * MIB).fill_(7) for _ in range(8)]
    holds(bool((y == 6).all()) and bool((x == 3).all()))
    del x, y, others
    del pool
    gc.collect()
    torch.cuda.empty_cache()
    expect(torch.cuda.memory_reserved() <= before, torch.cuda.memory_reserved(), "held,", before, "before")
    for _ in range(150):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = of(MIB)
        del x, pool


# ---- graphs ----


@check
def graph():
    side = torch.cuda.Stream()
    x = torch.zeros(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for _ in range(3):
            y = (x + 1) * 2
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        between = x + 1
        y = between * 2
        del between
    kept = churn(150, seed=3)
    torch.cuda.empty_cache()
    for value in (1.0, 5.0, -3.0):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        holds(bool((y == (value + 1) * 2).all()), "the replay gave other values")
    for t, mark in kept:
        holds(t[0].item() == mark and t[-1].item() == mark, "a replay wrote over other memory")
    graph.reset()


@check
def graphed_callables():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)).cuda()
    twin = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 64)).cuda()
    twin.load_state_dict(model.state_dict())
    call = torch.cuda.make_graphed_callables(model, (torch.randn(32, 256, device="cuda", requires_grad=True),))
    for _ in range(4):
        x = torch.randn(32, 256, device="cuda")
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        # A graph's gradients are its own buffers: what accumulates into them is overwritten by the next replay, on any
        # allocator.
        model.zero_grad(set_to_none=True)
        twin.zero_grad(set_to_none=True)
        call(a).square().mean().backward()
        twin(b).square().mean().backward()
        holds(torch.allclose(a.grad, b.grad, atol=1e-5), "gradients differ")
        for p, q in zip(model.parameters(), twin.parameters()):
            holds(torch.allclose(p.grad, q.grad, atol=1e-4), "weights' gradients differ")


def compiled(**how):
    import torch._dynamo

    torch._dynamo.reset()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 32)).cuda()
    call = torch.compile(model, **how)
    for step in range(6):
        x = torch.randn(64, 128, device="cuda")
        expected = model(x)
        grads = torch.autograd.grad(expected.square().mean(), list(model.parameters()))
        model.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        y = call(x)
        holds(torch.allclose(y, expected, atol=1e-3), "step", step, "gave other values")
        y.square().mean().backward()
        for p, g in zip(model.parameters(), grads):
            holds(torch.allclose(p.grad, g, atol=1e-3), "step", step, "gave other gradients")
    with torch.no_grad():
        for step in range(8):
            torch.compiler.cudagraph_mark_step_begin()
            x = torch.randn(64, 128, device="cuda")
            y = call(x)
            z = call(torch.cat([y] * 4, 1) if step % 3 else x)
            holds(torch.allclose(z, model(torch.cat([model(x)] * 4, 1) if step % 3 else x), atol=1e-3), "inference", step)
    del y, z
    torch._dynamo.reset()


@check
def compile_reduce_overhead():
    compiled(mode="reduce-overhead")


@check
def compile_cudagraphs():
    compiled(backend="cudagraphs")


# ---- libraries, streams, threads ----


@check
def cudnn_benchmark():
    torch.backends.cudnn.benchmark = True
    try:
        x = torch.randn(8, 16, 64, 64, device="cuda", requires_grad=True)
        w = torch.randn(32, 16, 3, 3, device="cuda", requires_grad=True)
        torch.nn.functional.conv2d(x, w, padding=1).sum().backward()
        expected = torch.nn.functional.conv2d(x.detach().cpu().double(), w.detach().cpu().double(), padding=1)
        got = torch.nn.functional.conv2d(x, w, padding=1).detach().cpu().double()
        holds(torch.allclose(got, expected, atol=0.2, rtol=0.05), "the convolution is wrong")
    finally:
        torch.backends.cudnn.benchmark = False


@check
def record_stream():
    streams = [torch.cuda.Stream() for _ in range(4)]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for step in range(400):
        size = 1 + (step * 7919) % (3 * MIB)
        x = torch.full((size,), step, dtype=torch.int32, device="cuda")
        stream = streams[step % 4]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                y = x + 1
            bad = (y != step + 1).sum()
        x.record_stream(stream)
        bad.record_stream(torch.cuda.current_stream())
        torch.cuda.current_stream().wait_event(stream.record_event())
        wrong += bad
        del x, y, bad
    torch.cuda.synchronize()
    holds(wrong.item() == 0, wrong.item(), "elements were overwritten")


@check
def threads():
    failed = []

    def work(seed):
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                kept = churn(120, seed=seed)
                for x, mark in kept:
                    holds(x[0].item() == mark and x[-1].item() == mark, "a block was overwritten")
                torch.cuda.current_stream().synchronize()
        except Exception as error:
            failed.append(error)

    running = [threading.Thread(target=work, args=(seed,)) for seed in range(10, 14)]
    [thread.start() for thread in running]
    [thread.join() for thread in running]
    expect(not failed, failed)
    adds_up()


@check
def out_of_memory():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *said: seen.append(said))
    total = torch.cuda.get_device_properties(0).total_memory
    x = of(64 * MIB).fill_(9)
    ooms = torch.cuda.memory_stats()["num_ooms"]
    for _ in range(3):
        fails(torch.OutOfMemoryError, lambda: of(total * 2), "CUDA out of memory. Tried to allocate")
    expect(torch.cuda.memory_stats()["num_ooms"] - ooms == 3 and len(seen) == 3)
    holds(bool((x == 9).all()))
    kept = []
    try:
        while True:
            kept.append(of(1024 * MIB + len(kept)))
    except torch.OutOfMemoryError:
        pass
    expect(len(kept) * 1024 * MIB > 0.8 * torch.cuda.mem_get_info()[1], "only", len(kept), "GiB were had")
    del kept[::2]
    y = of(2048 * MIB).fill_(1)
    holds(bool((x == 9).all()) and y[-1].item() == 1)
    del kept, y
    torch.cuda.empty_cache()
    adds_up()


@check
def wrong_pointers():
    good = torch.cuda.caching_allocator_alloc(1000)
    torch.cuda.caching_allocator_delete(good)
    fails(RuntimeError, lambda: torch.cuda.caching_allocator_delete(good), "invalid device pointer")


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, at):
        return torch.full((1000,), float(at))


@check
def data_loader():
    of(100)
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context="fork")
    total = sum(batch.to("cuda", non_blocking=True).sum().item() for batch in loader)
    holds(total == sum(range(64)) * 1000, total)


@check
def profiler():
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        x = torch.empty(5 * MIB, device="cuda")
    expect(any(event.self_device_memory_usage == 20 * MIB for event in run.key_averages()), "the allocation is not in the profile")
    del x


def main():
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    if not NATIVE:
        import gapless

        if not gapless.enable():
            print(f"FAIL enable: {gapless.disable_reason()}")
            return 1
        from gapless import _session

        if not _session._overlay:
            print("FAIL overlay: this build of torch is not one that gapless knows exactly")
            return 1
    failed = 0
    for function in CHECKS:
        if names and function.__name__ not in names:
            continue
        start = time.perf_counter()
        try:
            function()
            torch.cuda.synchronize()
            gc.collect()
            print(f"PASS {function.__name__} ({time.perf_counter() - start:.1f} s)", flush=True)
        except Exception as error:
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
            print(f"FAIL {function.__name__}: {reason} ({os.path.basename(where.filename)}:{where.lineno})", flush=True)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}: {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
