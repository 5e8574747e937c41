"""Optimizers and training steps inside torch.compile run as natively and give the eager values. The backend is
"eager": it needs no compiler."""
import copy
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
from common import *

g = start(limit=2 * GIB)
try:
    import torch._dynamo
except ImportError as error:
    skip(f"no torch.compile here: {error}")
torch.manual_seed(73)
torch.use_deterministic_algorithms(True)
torch._dynamo.config.cache_size_limit = 32
base = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
problems, compared = [], 0


def data(step):
    return torch.randn(256, 512, generator=torch.Generator("cuda").manual_seed(step), device="cuda")


def run(kind, optimizer, **options):
    """Trains with a compiled part; the parameters."""
    torch._dynamo.reset()
    model = copy.deepcopy(base)
    way = optimizer(model.parameters(), **options)

    def backward(x):
        model(x).square().mean().backward()

    def whole(x):
        way.zero_grad()
        backward(x)
        way.step()

    def parts(x):
        zero()
        backward(x)
        step()

    step, zero = way.step, way.zero_grad
    if kind == "step":
        step = torch.compile(lambda: way.step(), backend="eager")
    elif kind == "zero_grad":
        zero = torch.compile(lambda: way.zero_grad(), backend="eager")
    elif kind == "all":
        whole = torch.compile(whole, backend="eager")
    for at in range(6):
        (whole if kind == "all" else parts)(data(at))
        if at == 3:
            torch.cuda.empty_cache()
    return [p.detach().clone() for p in model.parameters()]


for optimizer, options in (
    (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    (torch.optim.AdamW, {"lr": 1e-3, "foreach": True, "capturable": True}),
):
    eager = run("eager", optimizer, **options)
    for kind in ("step", "zero_grad", "all"):
        try:
            found = run(kind, optimizer, **options)
        except Exception as error:
            text = next((line for line in str(error).splitlines() if line.strip()), "")
            problems.append(f"{optimizer.__name__}, {kind}: {type(error).__name__}: {text[:160]}")
            continue
        compared += 1
        # SGD runs the same kernels. AdamW's bias correction is traced to others, which round otherwise.
        is_alike = torch.equal if optimizer is torch.optim.SGD else torch.allclose
        differ = sum(int(not is_alike(a, b)) for a, b in zip(eager, found, strict=True))
        if differ:
            problems.append(f"{optimizer.__name__}, {kind}: {differ} parameters differ")
done(not problems, "; ".join(problems[:3]) or f"{compared} compiled loops as the eager ones")
