"""Two threads that train their own models on their own streams, each marking its own steps, reach the bits that each
of them reaches alone."""
import os
import threading

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
from common import *

g = start(limit=4 * GIB)
torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False
errors = []


def train(k, out, meet=None):
    """Model k, some steps on a stream of its own; what its parameters are then."""
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            source = torch.Generator("cuda").manual_seed(71 + k)
            width, rows = (768, 700) if k else (512, 1800)
            sizes = [width, 3 * width, 3 * width, width]
            weights = [0.02 * torch.randn(a, b, generator=source, device="cuda") for a, b in zip(sizes, sizes[1:])]
            weights = [w.requires_grad_() for w in weights]
            way = torch.optim.AdamW(weights, lr=1e-3) if k else torch.optim.SGD(weights, lr=1e-2, momentum=0.9)
            for step in range(30):
                if meet is not None and step % 5 == 0:
                    meet.wait(30)  # together, again and again
                x = torch.randn(rows - 64 * (step % 3), width, generator=source, device="cuda")
                for w in weights:
                    x = torch.nn.functional.gelu(x @ w)
                x.square().mean().backward()
                way.step()
                way.zero_grad()
                if step % 10 == 9:
                    torch.cuda.empty_cache()
            out[k] = [w.detach().cpu() for w in weights]
    except BaseException as error:
        errors.append(f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")


alone, together, rounds, differ = {}, {}, 3, 0
for k in range(2):
    train(k, alone)
for _ in range(rounds):
    meet = threading.Barrier(2)
    threads = [threading.Thread(target=train, args=(k, together, meet)) for k in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    if errors or any(t.is_alive() for t in threads):
        break
    differ += sum(int(not torch.equal(a, b)) for k in range(2) for a, b in zip(alone[k], together[k]))
torch.cuda.synchronize()
left = torch.cuda.memory_allocated()
ok = not errors and differ == 0 and len(together) == 2 and not adds_up()
done(ok, f"{rounds} rounds of two trainers: {differ} weights differ, {left >> 20} MiB left; {errors[:1]}")
