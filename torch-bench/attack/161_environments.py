"""Variables of the environment that people set for CUDA and for torch's memory: launches that block, eager modules,
one connection, memory that is not cached, a fraction of the card, every setting of torch's allocator. Each process has
the right bytes and books, and a fraction that the environment sets holds as one that the program sets."""
import subprocess
import sys

CONF = "PYTORCH_CUDA_ALLOC_CONF"
CASES = {
    "plain": {},
    "launches that block": {"CUDA_LAUNCH_BLOCKING": "1"},
    "eager modules, one connection": {"CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    "nothing is cached": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "a fraction": {CONF: "per_process_memory_fraction:0.02"},
    "a fraction by the newer name": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:128,per_process_memory_fraction:0.02"},
    "a fraction, expandable": {CONF: "expandable_segments:True, per_process_memory_fraction:0.02"},
    "large segments": {CONF: "large_segment_size_mb:64,max_non_split_rounding_mb:64,release_lock_on_cudamalloc:True"},
    "streams of captures": {CONF: "graph_capture_record_stream_reuse:True"},
    "no workspaces": {"CUBLAS_WORKSPACE_CONFIG": ":16:8", "TORCH_SHOW_CPP_STACKTRACES": "1"},
}
if len(sys.argv) == 1:
    from common import *

    said, running = [], []
    for name, changes in CASES.items():
        env = {**{k: v for k, v in os.environ.items() if not k.startswith("PYTORCH_")}, **changes}
        words = [sys.executable, "-W", "ignore", os.path.abspath(__file__), name]
        running.append((name, subprocess.Popen(words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)))
    for name, child in running:
        try:
            out = child.communicate(timeout=70)[0]
        except subprocess.TimeoutExpired:
            child.kill()
            out = "no end within 70 s"
        if child.returncode != 0:
            said.append(f"{name}: {(out.strip().splitlines() or [''])[-1][:200]}")
    done(not said, f"{len(said)}: " + "; ".join(said[:3]) if said else f"{len(CASES)} environments")
from common import *

name = sys.argv[1]
if not NATIVE:
    import gapless

    gapless.enable(oom_dir="off")
torch.cuda.init()
r, kept, mistakes, problems = rng(161), [], 0, []
total = torch.cuda.get_device_properties(0).total_memory
is_cached, has_fraction = name != "nothing is cached", "fraction" in name
wanted = 0.02 if has_fraction else 1.0
if abs(torch.cuda.memory.get_per_process_memory_fraction() - wanted) > 1e-9:
    problems.append(f"the fraction is {torch.cuda.memory.get_per_process_memory_fraction()}")
if has_fraction:
    try:
        big = torch.empty(int(0.025 * total), dtype=torch.uint8, device="cuda")
        problems.append("more than the fraction was served")
        del big
    except torch.OutOfMemoryError:
        pass
    most = torch.empty(int(0.015 * total), dtype=torch.uint8, device="cuda")
    del most
    torch.cuda.set_per_process_memory_fraction(0.03)
    big = torch.empty(int(0.025 * total), dtype=torch.uint8, device="cuda")
    del big
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)
side = torch.cuda.Stream()
for step in range(200):
    mark = r.randrange(1 << 18)
    with torch.cuda.stream(side if step % 3 == 0 else torch.cuda.current_stream()):
        x = fill(ints(log_uniform(r, 512, 40 * MIB)), mark)
        event = torch.cuda.current_stream().record_event()
    torch.cuda.current_stream().wait_event(event)
    x.record_stream(torch.cuda.current_stream())
    kept.append((x, mark))
    if len(kept) > 8:
        x, mark = kept.pop(r.randrange(8))
        mistakes += int(wrong(x, mark))
    x = None
    if step % 50 == 0:
        torch.cuda.empty_cache()
graph, y = torch.cuda.CUDAGraph(), torch.zeros(1 << 18, dtype=torch.int32, device="cuda")
if is_cached:  # natively a graph needs memory that is cached
    with torch.cuda.graph(graph):
        z = torch.cat([y + 1, y + 2])
    graph.replay()
    mistakes += int(z.sum().item() not in (3 << 18, 0))
mistakes += sum(int(wrong(x, mark)) for x, mark in kept)
if is_cached:
    problems += adds_up()
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"200 steps, {mistakes} wrong elements")
