"""Each of torch's questions about memory is the first thing that a process does with CUDA, from its main thread or
from one that ends at once: it is answered as natively (most of them start CUDA, some answer without), and what comes
after it works and counts from nothing."""
import select
import signal
import threading

from common import *

cuda, memory = torch.cuda, torch.cuda.memory


def first(body, check, then, where):
    """The question, what must be true of its answer, and what follows."""
    if not NATIVE:
        import gapless

        assert gapless.enable(oom_dir="off"), gapless.disable_reason()
    said = []

    def ask():
        try:
            said.append(eval(body))
        except BaseException as error:
            said.append(error)

    if where == "thread":
        t = threading.Thread(target=ask)
        t.start()
        t.join()
    else:
        ask()
    answer = said.pop()
    assert eval(check, globals(), {"answer": answer}), f"{type(answer).__name__} {answer!r}"[:200]
    del answer
    exec(then)
    assert cuda.memory_allocated() == 0 and cuda.max_memory_allocated() == 0, "something is allocated"
    x = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda")
    assert cuda.memory_allocated() == cuda.max_memory_allocated() == 5 * MIB <= cuda.memory_reserved(), "5 MiB"
    stats = cuda.memory_stats()
    assert stats["allocation.all.current"] == 1 and stats["num_ooms"] == 0, "counters"
    del x
    cuda.empty_cache()
    assert cuda.memory_allocated() == cuda.memory_reserved() == 0, f"{cuda.memory_reserved()} are reserved in the end"


# The question, and what its answer must be.
QUESTIONS = {
    "memory_allocated": ("cuda.memory_allocated()", "answer == 0"),
    "max_memory_reserved": ("cuda.max_memory_reserved()", "answer == 0"),
    "memory_stats": ("cuda.memory_stats()", "answer == {} or answer['allocated_bytes.all.current'] == 0"),
    "memory_stats of cuda:0": ("cuda.memory_stats('cuda:0')", "answer == {} or answer['reserved_bytes.all.current'] == 0"),
    "memory_summary": ("cuda.memory_summary(abbreviated=True)", "isinstance(answer, (str, KeyError))"),
    "memory_snapshot": ("cuda.memory_snapshot()", "answer == []"),
    "_snapshot": ("memory._snapshot()", "answer['segments'] == [] and not any(answer['device_traces'])"),
    "mem_get_info": ("cuda.mem_get_info()", "0 < answer[0] <= answer[1]"),
    "device_memory_used": ("cuda.get_device_properties(0).total_memory", "answer > 0"),
    "host_memory_stats": ("cuda.host_memory_stats()", "isinstance(answer, dict)"),
    "get_fraction": ("memory.get_per_process_memory_fraction()", "answer == 1.0"),
    "set_fraction": ("cuda.set_per_process_memory_fraction(0.5)", "answer is None and memory.get_per_process_memory_fraction() == 0.5"),
    "a wrong fraction": ("cuda.set_per_process_memory_fraction(1.5)", "isinstance(answer, ValueError)"),
    "empty_cache": ("cuda.empty_cache()", "answer is None and not cuda.is_initialized()"),
    "reset_peak": ("cuda.reset_peak_memory_stats()", "answer is None"),
    "reset_accumulated": ("cuda.reset_accumulated_memory_stats()", "answer is None"),
    "history": ("memory._record_memory_history('all', max_entries=50)", "answer is None"),
    "no history": ("memory._record_memory_history(None)", "answer is None"),
    "raw memory of nothing": ("memory.caching_allocator_alloc(0)", "answer in (0, None)"),
    "raw memory": ("memory.caching_allocator_delete(memory.caching_allocator_alloc(700)) or cuda.reset_peak_memory_stats()",
                   "answer is None"),
    "raw delete of null": ("memory.caching_allocator_delete(0)", "answer is None"),
    "accelerator": ("torch.accelerator.memory_allocated()", "answer == 0 or isinstance(answer, RuntimeError)"),
    "a pool": ("cuda.MemPool().use_count()", "answer == 1"),
    "a pool's snapshot": ("cuda.MemPool().snapshot()", "answer == []"),
    "a pool handle": ("cuda.graph_pool_handle()", "len(answer) == 2"),
    "an event": ("cuda.Event(interprocess=True).record()", "answer is None"),
    "no bytes": ("torch.empty(0, device='cuda').data_ptr()", "answer == 0"),
    "ipc_collect": ("cuda.ipc_collect()", "answer is None"),
    "too much": ("torch.empty(1 << 45, dtype=torch.uint8, device='cuda')", "isinstance(answer, torch.OutOfMemoryError)"),
    "synchronize": ("cuda.synchronize()", "answer is None"),
}  # fmt: skip
# Calls that come before the rest begins.
THEN = {"too much": "assert cuda.memory_stats()['num_ooms'] == 1; cuda.reset_accumulated_memory_stats()"}
problems = []
# Its thread does not survive a fork.
faulthandler.cancel_dump_traceback_later()
# Children of a process that has torch, and no CUDA yet.
for number, (name, (body, check)) in enumerate(QUESTIONS.items()):
    where = ("main", "thread")[number % 2]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        text = ""
        try:
            first(body, check, THEN.get(name, ""), where)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"[:300]
        os.write(write, text.encode() or b"fine")
        os._exit(0)
    os.close(write)
    if not select.select([read], [], [], 30)[0]:
        problems.append(f"{name} in the {where}: no answer")
        os.kill(child, signal.SIGKILL)
    with open(read) as told:
        text = told.read()
    os.waitpid(child, 0)
    if text != "fine":
        problems.append(f"{name} in the {where}: {text[:200] or 'it ended'}")
done(not problems, f"{len(problems)}: " + "; ".join(problems[:3]) if problems else f"{len(QUESTIONS)} first questions")
