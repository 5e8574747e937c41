"""torch.compile splits a model into CUDA graphs around parts that cannot be captured (graph_partition). With shapes
that change and inputs of the host in the middle, forward and backward: values and gradients are the eager ones, beside
requests that write over all free memory."""
from common import *

g = start(limit=4 * GIB)
try:
    import triton  # noqa: F401
except ImportError:
    skip("no Triton here")
import torch._inductor.config as config

if not hasattr(config, "graph_partition"):
    skip("this torch has no graph partitions")
config.graph_partition = True
config.compile_threads = 1
torch.manual_seed(152)
torch.backends.cuda.matmul.allow_tf32 = False
first = torch.nn.Linear(256, 256).cuda()
second = torch.nn.Linear(256, 256).cuda()


def model(x, shift):
    y = torch.relu(first(x))
    # The host computes in the middle: this part is not captured.
    z = (y.cpu() + shift).cuda()
    return torch.tanh(second(z)).square() + y


def churn(seed):
    r = rng(seed)
    held = [ints(log_uniform(r, 4096, 40 * MIB)).fill_(-1) for _ in range(6)]
    del held


compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
problems, worst = [], 0.0
try:
    for turn in range(12):
        rows = (64, 128)[turn // 6]
        x, shift = torch.randn(rows, 256, device="cuda"), torch.randn(256)
        torch.compiler.cudagraph_mark_step_begin()
        churn(turn)
        out = compiled(x, shift)
        out.mean().backward()
        mine = [out.detach().clone()] + [p.grad.clone() for p in (*first.parameters(), *second.parameters())]
        for p in (*first.parameters(), *second.parameters()):
            p.grad = None
        churn(100 + turn)
        eager = model(x, shift)
        eager.mean().backward()
        theirs = [eager.detach()] + [p.grad.clone() for p in (*first.parameters(), *second.parameters())]
        for p in (*first.parameters(), *second.parameters()):
            p.grad = None
        for a, b in zip(mine, theirs):
            error = float((a - b).abs().max() / b.abs().max().clamp(min=1e-6))
            worst = max(worst, error)
            if not error < 1e-3:
                problems.append(f"turn {turn}: an error of {error:.1e}")
        del out, eager, mine, theirs
except Exception as error:
    text = f"{type(error).__name__}: {str(error).strip().splitlines()[0][:160]}"
    if "compiler" in text.lower() and "not find" in text.lower() or "CppCompileError" in text or "InvalidCxxCompiler" in text:
        skip(f"no compiler here: {text[:120]}")
    problems.append(text)
problems += adds_up()
done(not problems, "; ".join(problems[:2]) or f"12 steps of two shapes, worst error {worst:.1e}")
