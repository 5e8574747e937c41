"""torch's functions around memory, one by one: those that answer natively, and those that answer on Gapless.

On a build of torch that the library knows, everything answers. On any other exactly the tools below OFF raise.
"""

import sys

PROBE = """
import sys, tempfile, warnings
import torch
import torch.utils.checkpoint

if "unknown" in sys.argv:
    torch.version.git_version = "0" * 40
if "gapless" in sys.argv:
    warnings.simplefilter("ignore")
    import gapless
    gapless.enable()
cuda, memory, accelerator = torch.cuda, torch.cuda.memory, torch.accelerator
x = torch.empty(1 << 20, device="cuda")
side = cuda.Stream()
folder = tempfile.mkdtemp()
norm = lambda: torch.nn.LayerNorm(8).cuda()
rows = lambda: torch.randn(4, 8, device="cuda", requires_grad=True)

def graph(**how):
    made = cuda.CUDAGraph()
    with cuda.graph(made, **how):
        y = torch.zeros(9, device="cuda") + 1
    made.replay()
    return made

def graphs_with_one_pool():
    pool = cuda.graph_pool_handle()
    for made in [graph(pool=pool), graph(pool=pool)]:
        made.replay()
        made.reset()

def graphed_callables():
    cuda.make_graphed_callables(norm(), (rows(),))

def out_of_memory():
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert str(error).startswith("CUDA out of memory. Tried to allocate"), error
    else:
        raise AssertionError("no error")

def mem_pool():
    pool = cuda.MemPool()
    with cuda.use_mem_pool(pool):
        y = torch.empty(99, device="cuda")
    assert pool.use_count() == 1 and len(pool.snapshot()) == 1

def compiled():
    model = norm()
    call = torch.compile(model, backend="cudagraphs")
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            call(torch.randn(4, 8, device="cuda"))

def raw_memory():
    cuda.caching_allocator_delete(cuda.caching_allocator_alloc(1000))

def resizing():
    y = torch.empty(10, device="cuda")
    y.resize_(1000)
    y.untyped_storage().resize_(0)

def training():
    model = norm()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(rows()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

def events():
    event = cuda.Event()
    event.record(side)
    cuda.current_stream().wait_event(event)
    event.synchronize()
    cuda.synchronize()

def profiling():
    with torch.autograd.profiler.profile(profile_memory=True, use_kineto=False):
        torch.empty(10, device="cuda")

tries = dict(
    memory_allocated=cuda.memory_allocated,
    max_memory_allocated=cuda.max_memory_allocated,
    memory_reserved=cuda.memory_reserved,
    max_memory_reserved=cuda.max_memory_reserved,
    memory_stats=cuda.memory_stats,
    memory_stats_as_nested_dict=cuda.memory_stats_as_nested_dict,
    memory_summary=cuda.memory_summary,
    reset_peak_memory_stats=cuda.reset_peak_memory_stats,
    reset_accumulated_memory_stats=cuda.reset_accumulated_memory_stats,
    reset_max_memory_allocated=cuda.reset_max_memory_allocated,
    empty_cache=cuda.empty_cache,
    mem_get_info=cuda.mem_get_info,
    set_per_process_memory_fraction=lambda: cuda.set_per_process_memory_fraction(0.9),
    get_per_process_memory_fraction=cuda.get_per_process_memory_fraction,
    get_allocator_backend=cuda.get_allocator_backend,
    host_memory_stats=cuda.host_memory_stats,
    accelerator_memory_allocated=accelerator.memory_allocated,
    accelerator_memory_stats=accelerator.memory_stats,
    accelerator_reset_peak_memory_stats=accelerator.reset_peak_memory_stats,
    accelerator_empty_cache=accelerator.empty_cache,
    accelerator_get_memory_info=accelerator.get_memory_info,
    record_stream=lambda: x.record_stream(side),
    graph=lambda: graph().reset(),
    graphs_with_one_pool=graphs_with_one_pool,
    graphed_callables=graphed_callables,
    out_of_memory=out_of_memory,
    raw_memory=raw_memory,
    resizing=resizing,
    size_zero=lambda: torch.empty(0, device="cuda"),
    training=training,
    checkpointing=lambda: torch.utils.checkpoint.checkpoint(norm(), rows(), use_reentrant=False).sum().backward(),
    pinned_copies=lambda: torch.empty(100, pin_memory=True).to("cuda", non_blocking=True),
    events=events,
    profiling=profiling,
    memory_snapshot=cuda.memory_snapshot,
    record_memory_history=memory._record_memory_history,
    snapshot=memory._snapshot,
    dump_snapshot=lambda: memory._dump_snapshot(folder + "/x.pickle"),
    oom_observer=lambda: torch._C._cuda_attach_out_of_memory_observer(lambda *_: None),
    mem_pool=mem_pool,
    cudagraph_trees=compiled,
)
for name, call in tries.items():
    try:
        call()
    except Exception as error:
        print(name, type(error).__name__, str(error).splitlines()[0][:100])
"""

OFF = {"memory_snapshot", "record_memory_history", "snapshot", "dump_snapshot", "oom_observer", "mem_pool", "cudagraph_trees"}


def refused(bench, tmp_path, *words):
    program = tmp_path / "probe.py"
    program.write_text(PROBE)
    done = bench.start([sys.executable, program, *words])
    # The profiler says on standard error that this card cannot be profiled.
    assert done.code == 0, done.err
    return {line.split()[0]: line for line in done.lines()}


def test_everything_answers_natively(bench, tmp_path):
    assert refused(bench, tmp_path) == {}


def test_everything_answers_on_gapless(real, tmp_path):
    assert refused(real, tmp_path, "gapless") == {}


def test_on_a_build_that_is_not_known_only_what_is_named_is_off(bench, tmp_path):
    off = refused(bench, tmp_path, "gapless", "unknown")
    # The double gives a null pointer if it has no memory.
    assert set(off) == OFF | ({"out_of_memory"} if bench.double else set()), off
    assert all("does not yet support" in line for name, line in off.items() if name in OFF), off
