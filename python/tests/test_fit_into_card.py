"""gapless.fit_into over the stand-in card: a model that does not fit with everything kept trains within its budget from
the first step on. test_fit_into.py compares gradients."""

import os

import pytest

START = """
import torch, gapless
from torch import nn
MIB = 1 << 20

class Model(nn.Module):
    def __init__(self, width=256, depth=12):
        super().__init__()
        wide = 4 * width
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()

def step(model, x):
    model(x).backward()
    model.zero_grad(set_to_none=True)
"""


@pytest.mark.parametrize("start", ["gapless.enable(limit='480MiB')", "# torch's own allocator"])
def test_a_model_that_does_not_fit_trains_within_its_budget_from_the_first_step(real, start):
    binary = os.environ.get("STANDIN_GAPLESS")
    if not binary:
        pytest.skip("STANDIN_GAPLESS does not name the command")
    done = real.passes(
        START
        + start
        + """
model, x = Model().cuda(), torch.zeros(8192, 256, device="cuda")
if gapless.enabled():
    try:
        step(model, x)
        raise SystemExit("it fits as it is, and the test shows nothing")
    except torch.OutOfMemoryError:
        model.zero_grad(set_to_none=True)
budget = 400 * MIB
fitted = gapless.fit_into(model, budget, wait=True)
moved = []
for number in range(6):
    torch.cuda.reset_peak_memory_stats()
    step(model, x)
    moved.append(fitted._aside.moved())
    assert torch.cuda.max_memory_allocated() <= budget, (number, torch.cuda.max_memory_allocated())
answer = fitted.answer()
assert answer["fits"] and answer["kept"]["peak"] > 2 * budget, answer["kept"]
# The plan is of the step with everything kept, and takes over.
assert moved[0] > 0 and moved[2] == moved[-1] and fitted.stats()["made"] > 0, (moved, fitted.stats())
assert abs(torch.cuda.max_memory_allocated() - answer["peak"]) < answer["peak"] / 50, (torch.cuda.max_memory_allocated(), answer["peak"])
""",
        GAPLESS_PROGRAM=binary,
    )
    assert "GaplessWarning" not in done.err, done.err
