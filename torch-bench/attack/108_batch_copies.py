"""Batched, strided and symmetric copies of the driver, sets in two dimensions and host functions between them, over
blocks that lie in many pages and in pages mapped twice, equal the host's."""
import ctypes

from common import *

g = start(limit=2 * GIB)
cuda = driver()
P, S = ctypes.c_void_p, ctypes.c_size_t
problems, mistakes, used = [], 0, []
needed = ("cuMemcpyBatchAsync", "cuMemcpy2DAsync_v2", "cuMemsetD2D32Async", "cuMemcpyPeerAsync", "cuLaunchHostFunc", "cuCtxGetCurrent")
have = {name: getattr(cuda, name, None) for name in needed}


class Copy2D(ctypes.Structure):
    _fields_ = [
        ("srcX", S), ("srcY", S), ("srcKind", ctypes.c_int), ("srcHost", P), ("srcDevice", ctypes.c_uint64), ("srcArray", P), ("srcPitch", S),
        ("dstX", S), ("dstY", S), ("dstKind", ctypes.c_int), ("dstHost", P), ("dstDevice", ctypes.c_uint64), ("dstArray", P), ("dstPitch", S),
        ("width", S), ("height", S),
    ]  # fmt: skip


class Location(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("id", ctypes.c_int)]


class Attributes(ctypes.Structure):
    _fields_ = [("order", ctypes.c_int), ("src", Location), ("dst", Location), ("flags", ctypes.c_uint)]


# Holes of 30 MiB, so that the next large block is put together of what is free.
pieces = [ints(30 * MIB) for _ in range(30)]
torch.cuda.synchronize()
del pieces[::2]
large = fill(ints(380 * MIB), 5)
mistakes += int(wrong(large, 5))
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
handle, n, r = P(stream.cuda_stream), large.numel(), rng(108)


def pointer(t, at=0):
    return t.data_ptr() + 4 * at


def checked(name, status):
    if status:
        problems.append(f"{name} gave {status}")
    else:
        used.append(name)
    return status == 0


for turn in range(4):
    # Many parts of many lengths, each to a block of its own, in one call.
    if have["cuMemcpyBatchAsync"] is not None:
        parts = [(r.randrange(n - (1 << 20)), r.randrange(1, 1 << 20)) for _ in range(48)]
        with torch.cuda.stream(stream):
            into = [ints(4 * length).fill_(-1) for _, length in parts]
        count = len(parts)
        dst = (ctypes.c_uint64 * count)(*[t.data_ptr() for t in into])
        src = (ctypes.c_uint64 * count)(*[pointer(large, at) for at, _ in parts])
        sizes = (S * count)(*[4 * length for _, length in parts])
        how, first, failed = Attributes(1, Location(0, 0), Location(0, 0), 0), (S * 1)(0), S(0)
        got = have["cuMemcpyBatchAsync"](dst, src, sizes, S(count), ctypes.byref(how), first, S(1), ctypes.byref(failed), handle)
        if got == 0:
            used.append("batch")
            with torch.cuda.stream(stream):
                bad = sum(wrong(t, 5 + at) for t, (at, _) in zip(into, parts))
            stream.synchronize()
            mistakes += int(bad)
        elif turn == 0:
            used.append(f"batch refused ({got})")
        del into
    # A block of rows out of the large one.
    rows, wide, pitch = 3000, 5000, 30000
    with torch.cuda.stream(stream):
        block = ints(4 * rows * wide).fill_(-1)
    if have["cuMemcpy2DAsync_v2"] is not None:
        copy = Copy2D(srcKind=2, srcDevice=pointer(large, 17), srcPitch=4 * pitch, dstKind=2, dstDevice=block.data_ptr(), dstPitch=4 * wide, width=4 * wide, height=rows)
        if checked("2D", have["cuMemcpy2DAsync_v2"](ctypes.byref(copy), handle)):
            with torch.cuda.stream(stream):
                want = torch.arange(rows, dtype=torch.int32, device="cuda")[:, None] * pitch + torch.arange(wide, dtype=torch.int32, device="cuda") + 22
                bad = (block.view(rows, wide) != want).sum()
                del want
            stream.synchronize()
            mistakes += int(bad)
    # The card is its own peer.
    context = P()
    if have["cuMemcpyPeerAsync"] is not None and cuda.cuCtxGetCurrent(ctypes.byref(context)) == 0:
        with torch.cuda.stream(stream):
            twin = ints(4 * n // 4).fill_(-1)
        there, here = ctypes.c_uint64(twin.data_ptr()), ctypes.c_uint64(pointer(large, n // 2))
        if checked("peer", have["cuMemcpyPeerAsync"](there, context, here, context, S(4 * twin.numel()), handle)):
            with torch.cuda.stream(stream):
                bad = wrong(twin, 5 + n // 2)
            stream.synchronize()
            mistakes += int(bad)
        del twin
    # Columns of the block are set; a host function then changes what is copied behind it.
    if have["cuMemsetD2D32Async"] is not None and have["cuLaunchHostFunc"] is not None:
        host = torch.zeros(wide, dtype=torch.int32).pin_memory()
        kind = ctypes.CFUNCTYPE(None, P)

        def write(_, host=host, turn=turn):
            ctypes.memset(host.data_ptr(), turn + 1, 4 * wide)

        call = kind(write)
        where = ctypes.c_uint64(block.data_ptr())
        checked("set", have["cuMemsetD2D32Async"](where, S(4 * wide), ctypes.c_uint(77), S(100), S(rows), handle))
        checked("host", have["cuLaunchHostFunc"](handle, call, None))
        with torch.cuda.stream(stream):
            late = host.to("cuda", non_blocking=True)
            table = block.view(rows, wide)
            bad = (table[:, :100] != 77).sum() + (late != (turn + 1) * 0x01010101).sum()
            bad += (table[1:, 100] - table[:-1, 100] != pitch).sum()
        stream.synchronize()
        mistakes += int(bad)
        del late, call
    # The large block goes and comes, and lies elsewhere.
    del block
    stream.synchronize()
    torch.cuda.synchronize()
    if turn == 1:
        del large
        torch.cuda.empty_cache()
        large = fill(ints(380 * MIB), 5)
        stream.wait_stream(torch.cuda.current_stream())
mistakes += int(wrong(large, 5))
problems += adds_up()
done(mistakes == 0 and not problems, "; ".join(problems[:3]) or f"four turns of {sorted(set(used))}, {mistakes} wrong elements")
