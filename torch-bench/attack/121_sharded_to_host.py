"""fully_shard with parameters, gradients and the optimizer on the host, copied to the card layer by layer on streams of
its own with pinned memory, and gathered again in the backward pass, trains as the plain model; with activation
checkpoints, and beside other requests."""
import copy

from common import *

import torch.distributed as dist

g = start(limit=3 * GIB)
if not dist.is_available() or not dist.is_nccl_available():
    skip("no NCCL")
try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    store = dist.HashStore()
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
except (ImportError, RuntimeError) as error:
    skip(f"NCCL does not start: {str(error).splitlines()[0][:100]}")
from torch.utils.checkpoint import checkpoint

torch.manual_seed(121)
torch.backends.cuda.matmul.allow_tf32 = False
mesh, width, report, ok, r = init_device_mesh("cuda", (1,)), 1024, [], True, rng(121)
side = torch.cuda.Stream()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)) for _ in range(5)
        )
        self.saves = False

    def forward(self, x):
        for part in self.parts:
            x = x + (checkpoint(part, x, use_reentrant=False) if self.saves else part(x))
        return x


base = Model()


def run(kind):
    model = copy.deepcopy(base)
    model.saves = "checkpoint" in kind
    if kind == "plain":
        model.cuda()
    else:
        policy = CPUOffloadPolicy(pin_memory="pinned" in kind)
        for part in model.parts:
            fully_shard(part, mesh=mesh, offload_policy=policy, mp_policy=MixedPrecisionPolicy())
        fully_shard(model, mesh=mesh, offload_policy=policy)
    way = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for step in range(8):
        x = torch.randn((256, 777, 64)[step % 3], width, generator=torch.Generator("cuda").manual_seed(step), device="cuda")
        loss = model(x).square().mean()
        with torch.cuda.stream(side):
            junk = [torch.full((log_uniform(r, 128, 6 << 20),), float("nan"), device="cuda") for _ in range(5)]
            del junk
        loss.backward()
        losses.append(float(loss.detach()))
        way.step()
        way.zero_grad()
        del x, loss
        if step % 3 == 2:
            torch.cuda.empty_cache()
    full = [p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]
    return losses, [p.detach().cpu().clone() for p in full]


plain = run("plain")
for kind in ("pinned", "pageable", "pinned checkpoint"):
    found = run(kind)
    losses = max(abs(a - b) for a, b in zip(plain[0], found[0]))
    apart = max(float((a - b).abs().max()) for a, b in zip(plain[1], found[1]))
    ok &= losses < 1e-3 and apart < 1e-3
    report.append(f"{kind} {losses:.0e} {apart:.0e}")
torch.cuda.synchronize()
problems = adds_up()
dist.destroy_process_group()
done(ok and not problems, f"{'; '.join(report)} {problems[:2]}")
