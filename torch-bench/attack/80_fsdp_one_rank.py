"""fully_shard on one rank, whose buffers for gathering are used on other streams and given back by resizing, trains as
the plain model does; also with buffers that NCCL itself allocates."""
import copy

from common import *

import torch.distributed as dist

g = start(limit=4 * GIB)
if not dist.is_available() or not dist.is_nccl_available():
    skip("no NCCL")
try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    device = torch.device("cuda", 0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
except (ImportError, RuntimeError) as error:
    skip(f"NCCL does not start: {str(error).splitlines()[0][:100]}")
torch.manual_seed(80)
torch.backends.cuda.matmul.allow_tf32 = False
mesh = init_device_mesh("cuda", (1,))
width, report, ok = 1024, [], True
base = torch.nn.Sequential(
    *[torch.nn.Sequential(torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)) for _ in range(6)]
).cuda()


def run(kind):
    model = copy.deepcopy(base)
    if kind != "plain":
        policy = MixedPrecisionPolicy()
        for part in model:
            fully_shard(part, mesh=mesh, reshard_after_forward=kind != "kept", mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        if kind == "nccl's buffers":
            model.set_allocate_memory_from_process_group_for_comm(True)
        if kind == "prefetch":
            layers = list(model)
            for at, part in enumerate(layers):
                part.set_modules_to_forward_prefetch(layers[at + 1 : at + 3])
                part.set_modules_to_backward_prefetch(layers[max(0, at - 2) : at][::-1])
    way = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(10):
        for part in range(2):
            rows = (512, 130, 900)[(step + part) % 3]
            x = torch.randn(rows, width, generator=torch.Generator("cuda").manual_seed(10 * step + part), device="cuda")
            if kind != "plain":
                model.set_requires_gradient_sync(part == 1)
            loss = model(x).square().mean() / 2
            loss.backward()
            losses.append(float(loss.detach()))
            del loss, x
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        way.step()
        way.zero_grad()
        junk = [ints(log_uniform(rng(step), 512, 24 * MIB)).fill_(-1) for _ in range(6)]
        del junk
        if step % 4 == 3:
            torch.cuda.empty_cache()
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return losses, [p.detach().clone() for p in full]


plain = run("plain")
for kind in ("sharded", "kept", "prefetch", "nccl's buffers"):
    try:
        found = run(kind)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        if kind != "nccl's buffers" or isinstance(error, torch.OutOfMemoryError):
            raise
        report.append(f"{kind}: {str(error).splitlines()[0][:80]}")
        continue
    losses = max(abs(a - b) for a, b in zip(plain[0], found[0]))
    apart = max(float((a - b).abs().max()) for a, b in zip(plain[1], found[1]))
    ok &= losses < 1e-4 and apart < 1e-3
    report.append(f"{kind} {losses:.0e} {apart:.0e}")
    del found
dist.destroy_process_group()
problems = adds_up()
done(ok and not problems, f"losses and weights apart from the plain model's: {'; '.join(report)} {problems[:1]}")
