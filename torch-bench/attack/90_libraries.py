"""Workspaces and plans of cuFFT, cuSOLVER, cuSPARSE, cuBLAS and cuDNN, with plan caches and workspaces that are thrown
away, streams that change and memory that was filled with NaNs before: results equal the host's."""
from common import *

g = start(limit=3 * GIB)
torch.manual_seed(90)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream(priority=-1)]
r, worst, bad, seen = rng(90), 0.0, [], {}


def rand(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype)


def symmetric(b, n):
    a = rand(b, n, n, dtype=torch.float64)
    return a @ a.mT + n * torch.eye(n, dtype=torch.float64)


def lowest(x):
    return torch.linalg.eigvalsh(x)


def solved(a, b):
    return torch.linalg.solve(a, b)


def rebuilt(a):
    q, t = torch.linalg.qr(a)
    return q @ t


def least(a):
    return torch.linalg.svdvals(a)


def sparse(a, b):
    return torch.where(a > 1.2, a, 0).to_sparse_csr() @ b


def coo(a, b):
    return torch.sparse.mm(torch.where(a > 1.2, a, 0).to_sparse(), b)


def conv(x, w):
    return torch.nn.functional.conv2d(x, w, padding=1)


def attention(x):
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def wave(x):
    return torch.view_as_real(torch.fft.fft2(x))


def around(x):
    return torch.fft.irfft(torch.fft.rfft(x, dim=-1), n=x.shape[-1], dim=-1)


def case():
    k = r.randrange(10)
    n, b = r.randrange(8, 160), r.randrange(1, 24)
    if k == 0:
        return wave, (rand(b, n, 2 * n),)
    if k == 1:
        return around, (rand(b * 10, r.randrange(100, 5000)),)
    if k == 2:
        return lowest, (symmetric(b, n),)
    if k == 3:
        return solved, (symmetric(b, n), rand(b, n, 5, dtype=torch.float64))
    if k == 4:
        return rebuilt, (rand(b, n + 20, n, dtype=torch.float64),)
    if k == 5:
        return least, (rand(min(b, 4), n, n, dtype=torch.float64),)
    if k == 6:
        return sparse, (rand(4 * n, 3 * n), rand(3 * n, 17))
    if k == 7:
        return coo, (rand(4 * n, 3 * n), rand(3 * n, 17))
    if k == 8:
        return conv, (rand(b, 16, n, n), rand(32, 16, 3, 3))
    return attention, (rand(b, 4, n, 64),)


torch.backends.cuda.cufft_plan_cache[0].max_size = 4
end, steps = time.monotonic() + 8, 0
while time.monotonic() < end:
    run, args = case()
    s = streams[r.randrange(3)]
    with torch.cuda.stream(s):
        junk = [torch.full((log_uniform(r, 1000, 8 << 20),), float("nan"), device="cuda") for _ in range(3)]
        del junk
        try:
            found = run(*[a.cuda() for a in args])
            junk = torch.full((1 << 20,), float("nan"), device="cuda")
            found = found.cpu().double()
            del junk
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            bad.append(f"{run.__name__}: {str(error).splitlines()[0][:100]}")
            break
    want = run(*[a.double() for a in args])
    scale = float(want.abs().max()) + 1
    apart = float((found - want).abs().max()) / scale
    if not apart < (1e-3 if args[0].dtype == torch.float32 else 1e-8):
        bad.append(f"{run.__name__} {[tuple(a.shape) for a in args]}: {apart:.1e} apart")
    worst = max(worst, apart)
    seen[run.__name__] = seen.get(run.__name__, 0) + 1
    steps += 1
    if steps % 17 == 0:
        torch._C._cuda_clearCublasWorkspaces()
    if steps % 23 == 0:
        torch.backends.cuda.cufft_plan_cache[0].clear()
    if steps % 31 == 0:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
torch.cuda.synchronize()
problems = adds_up()
done(not bad and not problems and steps > 5, f"{steps} results, at most {worst:.1e} apart; {bad[:2]} {problems[:1]} {seen}")
