"""DistributedDataParallel on one rank, with buckets that are the gradients, a static graph, unused parameters, no_sync
and a compressing hook, trains as the plain model does."""
import copy

from common import *

import torch.distributed as dist

g = start(limit=3 * GIB)
if not dist.is_available() or not dist.is_nccl_available():
    skip("no NCCL")
try:
    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
except RuntimeError as error:
    skip(f"NCCL does not start: {str(error).splitlines()[0][:100]}")
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(81)
torch.backends.cuda.matmul.allow_tf32 = False
width = 1024


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(8))

    def forward(self, x, skipped=None):
        for k, part in enumerate(self.parts):
            if k != skipped:
                x = x + torch.nn.functional.gelu(part(x))
        return x


base = Model().cuda()
kinds = {
    "buckets": {"gradient_as_bucket_view": True, "bucket_cap_mb": 5},
    "static": {"static_graph": True, "bucket_cap_mb": 3},
    "unused": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
    "bf16": {"bucket_cap_mb": 9},
}


def run(kind, ddp):
    model = copy.deepcopy(base)
    if ddp:
        model = DistributedDataParallel(model, device_ids=[0], **kinds[kind])
        if kind == "bf16":
            model.register_comm_hook(None, bf16_compress_hook)
    way, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for step in range(14):
        parts = 3 if kind == "buckets" else 1
        for part in range(parts):
            rows = (512, 130, 900)[(step + part) % 3]
            x = torch.randn(rows, width, generator=torch.Generator("cuda").manual_seed(10 * step + part), device="cuda")
            skipped = step % 4 if kind == "unused" else None
            waits = ddp and part + 1 < parts
            if waits:
                with model.no_sync():
                    loss = model(x, skipped).square().mean() / parts
                    loss.backward()
            else:
                loss = model(x, skipped).square().mean() / parts
                loss.backward()
            losses.append(float(loss.detach()))
            del loss, x
        way.step()
        way.zero_grad(set_to_none=step % 2 == 0)
        junk = [ints(log_uniform(rng(step), 512, 24 * MIB)).fill_(-1) for _ in range(6)]
        del junk
        if step % 5 == 4:
            torch.cuda.empty_cache()
    return losses, [p.detach().clone() for p in model.parameters()]


report, ok = [], True
for kind in kinds:
    plain, found = run(kind, False), run(kind, True)
    losses = max(abs(a - b) for a, b in zip(plain[0], found[0]))
    apart = max(float((a - b).abs().max()) for a, b in zip(plain[1], found[1]))
    room = 0.02 if kind == "bf16" else 1e-4
    ok &= losses < room * max(1.0, max(plain[0])) and apart < room
    report.append(f"{kind} {losses:.0e} {apart:.0e}")
    del plain, found
dist.destroy_process_group()
problems = adds_up()
done(ok and not problems, f"losses and weights apart from the plain model's: {'; '.join(report)} {problems[:1]}")
