"""Driver copies, sets and questions work on the allocator's pointers as on any, also if a block was put together of
free pieces."""
import ctypes

from common import *

g = start(limit=1 * GIB)
cuda = driver()
P, S, I = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint
problems = []


def call(name, *args):
    status = getattr(cuda, name)(*args)
    if status:
        problems.append(f"{name} gave {status}")
    return status


class Copy2D(ctypes.Structure):
    _fields_ = [
        ("srcXInBytes", S), ("srcY", S), ("srcMemoryType", ctypes.c_int), ("srcHost", P), ("srcDevice", P),
        ("srcArray", P), ("srcPitch", S), ("dstXInBytes", S), ("dstY", S), ("dstMemoryType", ctypes.c_int),
        ("dstHost", P), ("dstDevice", P), ("dstArray", P), ("dstPitch", S), ("WidthInBytes", S), ("Height", S),
    ]


pieces = [ints(30 * MIB) for _ in range(24)]
torch.cuda.synchronize()
free = pieces[::2]
for x in free:
    x.fill_(-1)
del pieces[::2], free, x
torch.cuda.synchronize()
a, b = ints(140 * MIB), ints(140 * MIB)
s = torch.cuda.current_stream().cuda_stream
n = a.numel()
for turn in range(5):
    fill(a, turn)
    call("cuMemsetD32Async", P(b.data_ptr()), I(77), S(n), P(s))
    if int((b != 77).sum()):
        problems.append("cuMemsetD32Async: wrong bytes")
    call("cuMemcpyDtoDAsync_v2", P(b.data_ptr()), P(a.data_ptr()), S(4 * n), P(s))
    if int(wrong(b, turn)):
        problems.append("cuMemcpyDtoDAsync: wrong bytes")
    # Rows of 1000 int32 of every 1024 to rows of 2048, and back to the host.
    b.zero_()
    rows = n // 2048
    where = Copy2D(srcMemoryType=2, srcDevice=a.data_ptr(), srcPitch=4096, dstMemoryType=2, dstDevice=b.data_ptr(),
                   dstPitch=8192, WidthInBytes=4000, Height=rows)
    call("cuMemcpy2DAsync_v2", ctypes.byref(where), P(s))
    got = b[: rows * 2048].view(rows, 2048)
    if int((got[:, :1000] != a[: rows * 1024].view(rows, 1024)[:, :1000]).sum()) or int((got[:, 1000:] != 0).sum()):
        problems.append("cuMemcpy2DAsync: wrong bytes")
    # To plain host memory and to registered memory, over the whole block.
    host = torch.zeros(n, dtype=torch.int32)
    call("cuMemcpyDtoH_v2", P(host.data_ptr()), P(a.data_ptr()), S(4 * n))
    expected = torch.arange(turn, turn + n, dtype=torch.int32)
    if not torch.equal(host, expected):
        problems.append("cuMemcpyDtoH: wrong bytes")
    host.zero_()
    if not call("cuMemHostRegister_v2", P(host.data_ptr()), S(4 * n), I(0)):
        call("cuMemcpyDtoHAsync_v2", P(host.data_ptr()), P(a.data_ptr()), S(4 * n), P(s))
        torch.cuda.synchronize()
        call("cuMemHostUnregister", P(host.data_ptr()))
        if not torch.equal(host, expected):
            problems.append("cuMemcpyDtoHAsync to registered memory: wrong bytes")
    # Memory of the driver beside ours.
    theirs = P()
    if not call("cuMemAlloc_v2", ctypes.byref(theirs), S(64 * MIB)):
        call("cuMemcpyDtoDAsync_v2", theirs, P(a.data_ptr() + 40 * MIB), S(64 * MIB), P(s))
        call("cuMemcpyDtoDAsync_v2", P(b.data_ptr()), theirs, S(64 * MIB), P(s))
        if not torch.equal(b[: 16 << 20], a[10 << 20 : 26 << 20]):
            problems.append("copies over cuMemAlloc: wrong bytes")
        call("cuMemFree_v2", theirs)
# Questions of libraries about pointers: its kind (device memory), its number, and the whole range that holds it.
for x in (a, b, pieces[3], torch.zeros(3, device="cuda")):
    for offset in (0, 4 * x.numel() - 4):
        kind, number = I(), ctypes.c_int(-1)
        at = P(x.data_ptr() + offset)
        call("cuPointerGetAttribute", ctypes.byref(kind), ctypes.c_int(2), at)
        call("cuPointerGetAttribute", ctypes.byref(number), ctypes.c_int(9), at)
        base, size = P(), S()
        call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), at)
        if kind.value != 2 or number.value != 0:
            problems.append(f"kind {kind.value}, card {number.value}")
        if not (base.value or 0) <= at.value < (base.value or 0) + size.value:
            problems.append("cuMemGetAddressRange gave a range elsewhere")
text = "; ".join(sorted(set(problems))[:6])
done(not problems, text or f"all as it should be, windows: {counters(g).get('gapless.windows')}")
