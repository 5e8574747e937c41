"""Compiled flex_attention with masks that change, forward and backward, whose masks and kernels' buffers are made and
thrown away between steps, gives the values of plain attention, also on a side stream and beside other requests."""
from common import *

g = start(limit=3 * GIB)
try:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as error:
    skip(f"no flex_attention here: {error}")
torch.manual_seed(119)
torch.backends.cuda.matmul.allow_tf32 = False
torch.set_float32_matmul_precision("highest")
B, H, D = 2, 4, 64
side, r, worst, steps, problems = torch.cuda.Stream(), rng(119), 0.0, 0, []


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q >= k) & (q - k < 100)


def plain(q, k, v, way, length):
    at = torch.arange(length, device="cuda")
    seen = at[:, None] >= at[None, :]
    if way is window:
        seen &= at[:, None] - at[None, :] < 100
    scores = (q.double() @ k.double().transpose(-1, -2)) / D**0.5
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ v.double()


try:
    fast = torch.compile(flex_attention, dynamic=False)
    inputs = [torch.randn(B, H, 256, D, device="cuda") for _ in range(3)]
    fast(*inputs, block_mask=create_block_mask(causal, None, None, 256, 256, device="cuda"))
    torch.cuda.synchronize()
except torch.OutOfMemoryError:
    raise
except Exception as error:
    skip(f"flex_attention does not compile here: {type(error).__name__}: {str(error).splitlines()[0][:80]}")
end = time.monotonic() + 7
while time.monotonic() < end:
    length = 256
    way = (causal, window)[steps % 2]
    stream = side if steps % 3 == 0 else torch.cuda.current_stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        q, k, v = (torch.randn(B, H, length, D, device="cuda", requires_grad=True) for _ in range(3))
        mask = create_block_mask(way, None, None, length, length, device="cuda")
        out = fast(q, k, v, block_mask=mask)
        del mask
        junk = [torch.full((log_uniform(r, 128, 4 << 20),), float("nan"), device="cuda") for _ in range(8)]
        del junk
        grad = torch.randn_like(out)
        out.backward(grad)
        q2, k2, v2 = (t.detach().double().requires_grad_() for t in (q, k, v))
        want = plain(q2, k2, v2, way, length)
        want.backward(grad.double())
        off = [(out - want).abs().max()] + [(a.grad - b.grad).abs().max() for a, b in ((q, q2), (k, k2), (v, v2))]
        worst = max(worst, *[float(o) if bool(torch.isfinite(o)) else float("inf") for o in off])
        del q, k, v, q2, k2, v2, out, want, grad, off
    steps += 1
    if steps % 4 == 0:
        torch.cuda.empty_cache()
    if worst > 0.05:
        problems.append(f"step {steps}: off by {worst}")
        break
problems += adds_up()
done(not problems and steps > 1, f"{steps} steps, off by {worst:.1e} at most {problems[:2]}")
