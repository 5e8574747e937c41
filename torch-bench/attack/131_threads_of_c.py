"""Threads that Python never saw free tensors, through torch's C functions; and tensors are freed by what runs when a
thread ends, after the variables of its thread are gone. With and without a history: bytes, books and the history's
entries are right."""
import ctypes
import threading

from common import *

g = start(limit=2 * GIB)
libc = ctypes.CDLL("libc.so.6")
try:
    torch_c = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    empty, delete = torch_c.aoti_torch_empty_strided, torch_c.aoti_torch_delete_tensor_object
    pointer_of, at_exit = torch_c.aoti_torch_get_data_ptr, libc["__cxa_thread_atexit_impl"]
except (OSError, AttributeError) as error:
    skip(f"this torch has no such C functions: {error}")
INT32, CUDA = 3, 1
problems, r = [], rng(131)


class Raw:
    def __init__(self, pointer, count):
        self.__cuda_array_interface__ = {"data": (pointer, False), "shape": (count,), "typestr": "<i4", "version": 3}


def made(count):
    """A tensor of torch's that no Python object knows: its handle, and the address of its memory."""
    handle, pointer, word = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64
    status = empty(word(1), (word * 1)(count), (word * 1)(1), ctypes.c_int32(INT32), ctypes.c_int32(CUDA),
                   ctypes.c_int32(0), ctypes.byref(handle))
    if status != 0 or pointer_of(handle, ctypes.byref(pointer)) != 0:
        raise RuntimeError(f"torch's C functions gave {status}")
    return handle, pointer.value


def in_threads_of_c(handles):
    """Each handle is given up in a thread that begins and ends in C."""
    threads = []
    for handle in handles:
        thread = ctypes.c_ulong()
        if libc.pthread_create(ctypes.byref(thread), None, delete, handle) != 0:
            raise RuntimeError("no thread")
        threads.append(thread)
    for thread in threads:
        libc.pthread_join(thread, None)


def at_the_end_of_a_thread(handles):
    """Each handle is given up when a thread ends, behind everything that came to the thread later."""

    def work():
        for handle in handles:
            at_exit(delete, handle, ctypes.cast(delete, ctypes.c_void_p))
        x = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        y = torch.empty(300, dtype=torch.uint8, device="cuda")
        del x, y

    t = threading.Thread(target=work)
    t.start()
    native = t.native_id
    t.join()
    # The thread's own end comes after Python's.
    until = time.monotonic() + 20
    while os.path.exists(f"/proc/self/task/{native}") and time.monotonic() < until:
        time.sleep(0.001)


torch.cuda.synchronize()
mistakes, kept = 0, []
for watched in (None, "all", None, "state"):
    if watched:
        torch.cuda.memory._record_memory_history(watched, max_entries=100_000)
    base = torch.cuda.memory_allocated()
    for give_up in (in_threads_of_c, at_the_end_of_a_thread):
        for turn in range(12):
            handles, pointers = [], []
            for _ in range(6):
                count = log_uniform(r, 128, MIB)
                handle, pointer = made(count)
                mark = r.randrange(1 << 18)
                view = torch.as_tensor(Raw(pointer, count), device="cuda")
                fill(view, mark)
                mistakes += int(wrong(view, mark))
                del view
                handles.append(handle)
                pointers.append(pointer)
            x = fill(ints(log_uniform(r, 512, 4 * MIB)), turn)
            kept.append((x, turn))
            del x
            torch.cuda.synchronize()
            give_up(handles)
            if len(kept) > 8:
                x, mark = kept.pop(0)
                mistakes += int(wrong(x, mark))
                del x
            if watched == "all":
                entries = torch.cuda.memory._snapshot()["device_traces"][0]
                for pointer in pointers:
                    last = [e["action"] for e in entries if e.get("addr") == pointer][-3:]
                    if last != ["alloc", "free_requested", "free_completed"]:
                        problems.append(f"{give_up.__name__}: the history of a block ends in {last}")
    mistakes += sum(int(wrong(x, mark)) for x, mark in kept)
    kept.clear()
    x = None
    if torch.cuda.memory_allocated() != base:
        problems.append(f"{torch.cuda.memory_allocated() - base} bytes stay, with history {watched}")
    problems += adds_up()
    torch.cuda.memory._record_memory_history(None)
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"four rounds, {mistakes} wrong elements")
