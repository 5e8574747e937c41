"""Kernels that load through tensor maps (TMA), over memory that is put together of many pages: attention by every
backend that torch has, 8-bit and grouped matrix products, and a kernel of the program's own with descriptors, in
memory that comes and goes so that blocks begin and end inside of pages. Results are those of the same work in memory
of its own."""
from common import *
import torch.nn.functional as F

g = start(limit=3 * GIB)
if torch.cuda.get_device_capability() < (9, 0):
    skip("this card has no tensor maps")
torch.backends.cuda.matmul.allow_tf32 = False
r, mistakes, problems, ran = rng(170), 0, [], {}


def churned():
    """Leaves free pieces of all sizes, so that the next large blocks are put together of them."""
    held = [ints(log_uniform(r, 64 * KIB, 40 * MIB)) for _ in range(40)]
    return [x for x in held if r.random() < 0.4]


def again(name, work, *inputs):
    """The same work twice: on what it was given, and on copies in a pool of their own. Bit for bit."""
    global mistakes
    try:
        first = work(*inputs)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            copies = [x.clone(memory_format=torch.preserve_format) for x in inputs]
            second = work(*copies)
        torch.cuda.synchronize()
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "illegal" in str(error):
            raise
        ran.setdefault(name, str(error).splitlines()[0][:60])
        return
    same = torch.equal(first.view(torch.uint8), second.view(torch.uint8))
    mistakes += not same or not bool(torch.isfinite(first.float()).all())
    ran[name] = (ran[name] if isinstance(ran.get(name), int) else 0) + 1


try:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

    @triton.jit
    def moved(source, target, rows, width, R: tl.constexpr, W: tl.constexpr):
        i, j = tl.program_id(0) * R, tl.program_id(1) * W
        target.store([i, j], source.load([i, j]) + 1)

    def by_descriptor(x):
        y = torch.empty_like(x)
        R, W = 64, 64
        source, target = TensorDescriptor.from_tensor(x, [R, W]), TensorDescriptor.from_tensor(y, [R, W])
        moved[(triton.cdiv(x.shape[0], R), triton.cdiv(x.shape[1], W))](source, target, x.shape[0], x.shape[1], R, W)
        return y
except Exception as error:
    by_descriptor = None
    ran["descriptors"] = f"{type(error).__name__}"
torch.manual_seed(170)
backends = [getattr(torch.nn.attention.SDPBackend, name) for name in ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")]
end = time.monotonic() + 9
for turn in range(12):
    held = churned()
    b, h, n, d = r.choice([1, 3]), r.choice([4, 9]), r.choice([640, 1500, 2048]), 64
    q, k, v = (torch.randn(b, h, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for backend in backends:
        def attend(q, k, v):
            with torch.nn.attention.sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        again(backend.name, attend, q, k, v)
    m, n, k_ = 16 * r.randrange(8, 90), 16 * r.randrange(8, 90), 16 * r.randrange(8, 200)
    a = torch.randn(m, k_, device="cuda").to(torch.float8_e4m3fn)
    w = torch.randn(n, k_, device="cuda").to(torch.float8_e4m3fn)
    one = torch.ones((), device="cuda")
    again("scaled_mm", lambda a, w: torch._scaled_mm(a, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16), a, w)
    groups = 5
    x = torch.randn(groups * 128, 256, device="cuda", dtype=torch.bfloat16)
    ws = torch.randn(groups, 256, 512, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(1, groups + 1, device="cuda", dtype=torch.int32) * 128
    if hasattr(torch, "_grouped_mm"):
        again("grouped_mm", lambda x, ws: torch._grouped_mm(x, ws, offs=ends), x, ws)
    big = torch.randn(1024 * r.randrange(1, 6) + 64, 64 * r.randrange(4, 60), device="cuda", dtype=torch.float16)
    again("matmul", lambda big: big @ big.t(), big)
    if by_descriptor is not None:
        whole = ints(4 * 64 * 4096 * r.randrange(1, 12)).view(-1, 4096)
        fill(whole.view(-1), turn)
        try:
            y = by_descriptor(whole)
            mistakes += int(wrong(y.view(-1), turn + 1))
            ran["descriptors"] = (ran["descriptors"] if isinstance(ran.get("descriptors"), int) else 0) + 1
            del y
        except Exception as error:
            if "illegal" in str(error):
                raise
            by_descriptor, ran["descriptors"] = None, f"{type(error).__name__}: {str(error)[:60]}"
        del whole
    del q, k, v, a, w, x, ws, big, held
    if turn % 3 == 2:
        torch.cuda.empty_cache()
    if time.monotonic() > end:
        break
problems += adds_up()
if not any(isinstance(count, int) for count in ran.values()):
    skip(f"nothing runs here: {ran}")
done(mistakes == 0 and not problems, f"{mistakes} results differ; {ran} {problems[:1]}")
