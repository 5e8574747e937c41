"""The note that a program sets for its memory belongs to one thread: threads that set others, or none, and autograd's
own threads have theirs. Each entry of the history has the note of the thread that it happened in, and a note that is
set while others allocate reaches no other thread."""
import threading

from common import *

start()
if not hasattr(torch._C, "_cuda_setMemoryMetadata"):
    skip("this torch has no notes")
set_note, get_note = torch._C._cuda_setMemoryMetadata, torch._C._cuda_getMemoryMetadata
torch.cuda.memory._record_memory_history(context=None, max_entries=100_000)
problems, sizes = [], {}
begun = threading.Barrier(5)


def work(number):
    note = f"thread {number}" if number else ""
    if get_note():
        problems.append(f"thread {number} begins with {get_note()!r}")
    begun.wait()
    for turn in range(200):
        set_note(note and f"{note} turn {turn}")
        size = 512 * (1 + number + 5 * turn)
        sizes[size] = note and f"{note} turn {turn}"
        x = torch.empty(size, dtype=torch.uint8, device="cuda")
        if get_note() != sizes[size]:
            problems.append(f"thread {number} has the note {get_note()!r} in turn {turn}")
        del x
    set_note("")


set_note("main")
threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if get_note() != "main":
    problems.append(f"the main thread's note became {get_note()!r}")

# Autograd's thread has no note of the one that calls it.
seen = []
class Ask(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        seen.append((threading.get_ident(), get_note()))
        return grad * 1


x = torch.ones(1000, device="cuda", requires_grad=True)
Ask.apply(x).sum().backward()
for thread, note in seen:
    if note != ("main" if thread == threading.get_ident() else ""):
        problems.append(f"autograd's thread has the note {note!r}")

found = 0
for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
    if entry["action"] in ("alloc", "free_requested") and entry["size"] in sizes:
        found += 1
        if entry["user_metadata"] != sizes[entry["size"]]:
            problems.append(f"{entry['action']} of {entry['size']} has {entry['user_metadata']!r} for {sizes[entry['size']]!r}")
if found < 2000:
    problems.append(f"only {found} entries")
done(not problems, f"{found} entries of five threads, {len(problems)} problems: {problems[:2]}")
