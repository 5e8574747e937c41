"""Saved activations that leave by a side stream and come back, that torch keeps in pinned memory, or that are computed
again on several streams give the gradients of the plain model, bit for bit (pinned: to rounding)."""
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
from common import *

from torch.utils.checkpoint import checkpoint

g = start(limit=3 * GIB)
torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(79)
width, depth = 768, 8
parts = torch.nn.ModuleList(
    torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(2 * width, width))
    for _ in range(depth)
).cuda()
away, back, streams = torch.cuda.Stream(), torch.cuda.Stream(), [torch.cuda.Stream() for _ in range(3)]
waiting, moved = [], 0


def pack(t, by_event):
    """Copies a tensor to the host beside the computation. Its memory is kept by record_stream, or by a list until the
    copy's event is done."""
    global moved
    if t.numel() < 100_000 or not t.is_cuda or isinstance(t, torch.nn.Parameter) or not t.is_contiguous():
        return t
    host = torch.empty(t.shape, dtype=t.dtype, pin_memory=True)
    away.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(away):
        host.copy_(t, non_blocking=True)
        copied = away.record_event()
    if by_event:
        waiting.append((t.detach(), copied))
        while waiting and waiting[0][1].query():
            waiting.pop(0)
    else:
        t.record_stream(away)
    moved += 1
    return host, copied


def unpack(kept):
    if isinstance(kept, torch.Tensor):
        return kept
    host, copied = kept
    with torch.cuda.stream(back):
        back.wait_event(copied)
        t = host.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(back)
    t.record_stream(torch.cuda.current_stream())
    return t


def forward(x, way):
    for k, part in enumerate(parts):
        if way == "again":
            x = x + checkpoint(part, x, use_reentrant=False)
        elif way == "reentrant":
            x = x + checkpoint(part, x, use_reentrant=True)
        elif way == "streams":
            s, main = streams[k % 3], torch.cuda.current_stream()
            s.wait_stream(main)
            with torch.cuda.stream(s):
                y = checkpoint(part, x, use_reentrant=False)
            x.record_stream(s)
            main.wait_stream(s)
            y.record_stream(main)
            x = x + y
        else:
            x = x + part(x)
    return x.square().mean()


def gradients(way, rows):
    torch.manual_seed(rows)
    x = torch.randn(rows, width, device="cuda", requires_grad=True)
    if way == "pinned":
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = forward(x, way)
    elif way in ("event", "record"):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: pack(t, way == "event"), unpack):
            loss = forward(x, way)
    else:
        loss = forward(x, way)
    junk = [ints(3 * MIB).fill_(-1) for _ in range(12)]
    del junk
    loss.backward()
    found = [loss.detach(), x.grad] + [p.grad for p in parts.parameters()]
    parts.zero_grad(set_to_none=True)
    torch.cuda.current_stream().synchronize()
    waiting.clear()
    return found


ways, differ = ("again", "reentrant", "streams", "pinned", "event", "record"), {}
for rows in (700, 256, 1100, 700):
    plain = gradients("plain", rows)
    for way in ways:
        found = gradients(way, rows)
        # save_on_cpu loses strides, so that products run other kernels and round otherwise.
        is_alike = torch.allclose if way == "pinned" else torch.equal
        bad = sum(int(not is_alike(a, b)) for a, b in zip(plain, found, strict=True))
        if bad:
            differ[way] = differ.get(way, 0) + bad
        del found
    torch.cuda.empty_cache()
done(not differ and moved > 50 and not adds_up(), f"six ways, four sizes, {moved} tensors moved; differ: {differ or 'none'}")
