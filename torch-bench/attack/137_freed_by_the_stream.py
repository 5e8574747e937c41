"""Tensors are freed by host functions of their streams, in the driver's own thread, in the order of the work: torch's
allocator makes no CUDA call for that. Meanwhile the program asks for, frees and puts together memory of other sizes on
other streams. Nothing waits for each other, and every read has its own bytes."""
import ctypes

from common import *

# Stays far from the limit: near it every allocator waits for streams, whose host functions wait for the allocator.
g = start(limit=8 * GIB)
cuda = driver()
try:
    torch_c = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
    empty, delete = torch_c.aoti_torch_empty_strided, torch_c.aoti_torch_delete_tensor_object
    pointer_of, launch = torch_c.aoti_torch_get_data_ptr, cuda.cuLaunchHostFunc
except (OSError, AttributeError) as error:
    skip(f"not here: {error}")
INT32, CUDA = 3, 1
problems, bad, r, freed = [], [], rng(137), 0


class Raw:
    def __init__(self, pointer, count):
        self.__cuda_array_interface__ = {"data": (pointer, False), "shape": (count,), "typestr": "<i4", "version": 3}


def made(count):
    handle, pointer, word = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int64
    status = empty(word(1), (word * 1)(count), (word * 1)(1), ctypes.c_int32(INT32), ctypes.c_int32(CUDA),
                   ctypes.c_int32(0), ctypes.byref(handle))
    if status != 0 or pointer_of(handle, ctypes.byref(pointer)) != 0:
        raise RuntimeError(f"torch's C functions gave {status}")
    return handle, torch.as_tensor(Raw(pointer.value, count), device="cuda")


streams = [torch.cuda.Stream() for _ in range(3)]
for s in streams:
    with torch.cuda.stream(s):
        int(wrong(fill(ints(MIB), 1), 1))
busy(0.1)
torch.cuda.synchronize()
base = torch.cuda.memory_allocated()
live = []
for step in range(500):
    s = streams[r.randrange(3)]
    with torch.cuda.stream(s):
        count, mark = log_uniform(r, 128, 6 * MIB), r.randrange(1 << 18)
        handle, view = made(count)
        fill(view, mark)
        if step % 7 == 0:
            busy(2)
        bad.append(wrong(view, mark))
        del view
        if launch(ctypes.c_void_p(s.cuda_stream), delete, handle) != 0:
            problems.append("the driver takes no host function")
            break
        freed += 1
    # Beside it: sizes that drift, so that free pieces are put together and lent.
    with torch.cuda.stream(streams[step % 3]):
        mark = r.randrange(1 << 18)
        live.append((fill(ints(log_uniform(r, 64 * KIB, 60 * MIB)), mark), mark, streams[step % 3]))
    while len(live) > 14 + 8 * (step // 60 % 2):
        x, mark, owner = live.pop(r.randrange(len(live)))
        with torch.cuda.stream(owner):
            bad.append(wrong(x, mark))
        del x
    if len(bad) > 400:
        torch.cuda.synchronize()
        bad = [torch.tensor(sum(int(b) for b in bad), device="cuda")]
    if step % 100 == 99:
        torch.cuda.synchronize()
        problems += adds_up()
for x, mark, owner in live:
    with torch.cuda.stream(owner):
        bad.append(wrong(x, mark))
torch.cuda.synchronize()
mistakes = sum(int(b) for b in bad)
live, bad, x = [], [], None
torch.cuda.synchronize()
if torch.cuda.memory_allocated() != base:
    problems.append(f"{torch.cuda.memory_allocated() - base} bytes stay")
done(not problems and mistakes == 0, "; ".join(problems[:3]) or f"{freed} tensors freed by streams, {mistakes} wrong elements")
