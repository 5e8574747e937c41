"""Threads with small stacks ask for memory, free it, fail, empty the cache, take snapshots and record histories;
sixteen of them begin together, as the first use of CUDA in the process, and end before the rest begins. Nothing
overflows, and books are right."""
import threading

from common import *

if not NATIVE:
    import gapless

    if not gapless.enable(limit="1GiB", oom_dir="off"):
        done(False, gapless.disable_reason())
problems, together = [], threading.Barrier(16)
memory = torch.cuda.memory


def told(work):
    def run(*args):
        try:
            work(*args)
        except BaseException as error:
            problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:140] if str(error) else ''}")

    return run


@told
def begins(k):
    together.wait(30)
    x = torch.empty((k + 1) * 4096, dtype=torch.uint8, device="cuda")
    if torch.cuda.memory_allocated() < x.numel() or x.data_ptr() % 512:
        problems.append("a first tensor is not counted, or lies oddly")
    memory.caching_allocator_delete(memory.caching_allocator_alloc(1000 * (k + 1)))


@told
def works(k):
    r, kept, side = rng(1640 + k), [], torch.cuda.Stream()
    for step in range(60):
        with torch.cuda.stream(side if step % 3 == 0 else torch.cuda.current_stream()):
            kept.append(torch.empty(log_uniform(r, 1, 12 * MIB), dtype=torch.uint8, device="cuda"))
        if step % 4 == 0:
            kept[-1].record_stream(side)
        if len(kept) > 6:
            kept.pop(r.randrange(6))
        if step % 20 == 7:
            for odd in (8 * GIB, 1 << 61):
                try:
                    torch.empty(odd, dtype=torch.uint8, device="cuda")
                    problems.append(f"{odd} bytes were served")
                except torch.OutOfMemoryError as error:
                    if "CUDA out of memory" not in str(error):
                        problems.append(str(error)[:80])
        if step % 30 == 10:
            torch.cuda.empty_cache()
        if step % 30 == 20:
            memory._snapshot()
            torch.cuda.memory_stats()
            torch.cuda.memory_summary()
        if k == 0 and step % 20 == 0:
            memory._record_memory_history(*(["all"] if step % 40 == 0 else [None]), **({"max_entries": 500} if step % 40 == 0 else {}))


before = threading.stack_size(256 * KIB)
threads = [threading.Thread(target=begins, args=(k,)) for k in range(16)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
if NATIVE:
    torch.cuda.set_per_process_memory_fraction(min(1.0, GIB / torch.cuda.get_device_properties(0).total_memory))
if torch.cuda.memory_allocated() != 0:
    problems.append(f"{torch.cuda.memory_allocated()} bytes are left of the first threads")
threads = [threading.Thread(target=works, args=(k,)) for k in range(4)]
for t in threads:
    t.start()
for t in threads:
    t.join(60)
threading.stack_size(before)
memory._record_memory_history(None)
torch.cuda.synchronize()
torch.cuda.empty_cache()
if torch.cuda.memory_allocated() != 0 or torch.cuda.memory_reserved() != 0:
    problems.append(f"{torch.cuda.memory_allocated()} and {torch.cuda.memory_reserved()} bytes are left")
problems += adds_up()
done(not problems, f"{len(problems)}: " + "; ".join(problems[:3]) if problems else "20 threads with 256 KiB of stack")
