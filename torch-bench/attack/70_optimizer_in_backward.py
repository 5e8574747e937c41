"""Optimizers that step and give gradients back inside the backward pass, one for each parameter, train to the same
bits as the same optimizers do after it. Each of them marks a step of the program, in the middle of one."""
import copy
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
from common import *

g = start(limit=3 * GIB)
torch.manual_seed(70)
torch.use_deterministic_algorithms(True)
torch.backends.cuda.matmul.allow_tf32 = False
width, depth = 1024, 8


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


inside = torch.nn.Sequential(*[Block() for _ in range(depth)]).cuda()
after = copy.deepcopy(inside)
ways = {}
for model in (inside, after):
    for k, p in enumerate(model.parameters()):
        ways[p] = torch.optim.AdamW([p], lr=1e-3) if k % 2 else torch.optim.SGD([p], lr=1e-2, momentum=0.9)


def in_backward(p):
    ways[p].step()
    ways[p].zero_grad(set_to_none=True)


for p in inside.parameters():
    p.register_post_accumulate_grad_hook(in_backward)
# Batches that repeat, so that steps are recognised, and now and then one that does not.
batches = [512, 512, 512, 512, 96, 512, 512, 1000, 96, 512] * 4
losses = 0
for step, rows in enumerate(batches):
    x = torch.randn(rows, width, generator=torch.Generator("cuda").manual_seed(step), device="cuda")
    both = []
    for model in (inside, after):
        loss = model(x).square().mean()
        loss.backward()
        both.append(loss.detach())
        if model is after:
            for p in after.parameters():
                in_backward(p)
    losses += int(not torch.equal(*both))
    del loss, both, x
    if step % 13 == 12:
        torch.cuda.empty_cache()
differ = sum(int(not torch.equal(a, b)) for a, b in zip(inside.parameters(), after.parameters()))
held = torch.cuda.memory_allocated() >> 20
plans = counters(g).get("gapless.plan.steps", 0)
ok = losses == 0 and differ == 0 and not adds_up()
done(ok, f"{len(batches)} steps: {losses} losses and {differ} parameters differ, {held} MiB held, {plans} planned steps")
