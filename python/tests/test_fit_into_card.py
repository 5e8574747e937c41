"""gapless.fit_into over the stand-in card: a model that does not fit with everything kept trains within its budget from
the first step on. test_fit_into.py compares gradients."""

import os
import sys

import pytest

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width=256, depth=12):
        super().__init__()
        wide = 4 * width
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width)) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()
"""

START = (
    MODEL
    + """
import gapless
MIB = 1 << 20

def step(model, x):
    model(x).backward()
    model.zero_grad(set_to_none=True)
"""
)


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


def test_a_program_that_knows_of_no_budget_trains_in_it(real):
    """A wrapper, a model that is evaluated, a checkpoint that computes again, a frozen model, two models by turns."""
    binary = os.environ.get("STANDIN_GAPLESS")
    if not binary:
        pytest.skip("STANDIN_GAPLESS does not name the command")
    done = real.passes(
        START
        + """
import gapless._fit_into.auto as auto
from torch.utils.checkpoint import checkpoint
gapless.enable(limit="480MiB")
auto.install(torch, 400 * MIB)

class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)

teacher, small = Model(depth=1).cuda().requires_grad_(False), nn.Linear(256, 256).cuda()
model, x = Wrapped(Model()).cuda(), torch.zeros(8192, 256, device="cuda")
optimizer = torch.optim.SGD([*model.parameters(), *small.parameters()], lr=0.1)
for number in range(9):
    teacher(x)
    with torch.no_grad():
        model.eval()(x[:8])
    model.train()
    torch.cuda.reset_peak_memory_stats()
    model(x).backward()
    assert torch.cuda.max_memory_allocated() <= 400 * MIB, (number, torch.cuda.max_memory_allocated())
    checkpoint(small, x, use_reentrant=False).sum().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for fitted in auto.fitted():
        fitted.wait()
found = {type(fitted._model()).__name__: fitted for fitted in auto.fitted()}
assert sorted(found) == ["Linear", "Wrapped"], found
assert found["Wrapped"].answer()["fits"] and found["Wrapped"].stats()["made"] > 0, found["Wrapped"].stats()
assert auto._watch._handles == [] and not torch.nn.modules.module._global_forward_pre_hooks
""",
        GAPLESS_PROGRAM=binary,
    )
    lines = [line for line in done.err.splitlines() if line.startswith("gapless: ")]
    assert any("Wrapped: a step takes" in line and "in place of" in line for line in lines), done.err
    assert "GaplessWarning" not in done.err, done.err


SCRIPT = (
    MODEL
    + """
model = Model(1024, 6).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(7):
    model(torch.randn(8192, 1024, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
"""
)


def test_an_estimate_says_whether_a_program_trains_in_a_budget_and_at_what_time(estimated, tmp_path):
    binary = os.environ.get("STANDIN_GAPLESS")
    if not binary:
        pytest.skip("STANDIN_GAPLESS does not name the command")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    plain = estimated(script)
    found = {size: estimated("--train-in", size, script) for size in ("1500MiB", "1GiB", "300MiB")}
    peaks = []
    for size, (code, answer, err) in found.items():
        (plan,) = answer["trained_in"]["plans"]
        assert code == (0 if plan["fits"] else 1) and answer["fits"] is plan["fits"], (size, code, err)
        assert not plan["fits"] or answer["peak_allocated"] <= answer["trained_in"]["budget"], (size, answer["peak_allocated"])
        assert plan["kept"]["peak"] <= plain[1]["peak_allocated"] * 1.01
        # One H200 needs half a millisecond for these products, not a second.
        assert 1e-3 < plan["kept"]["seconds"] <= plan["seconds"] < 1
        # Steps without a plan are not steps of the program.
        assert answer["spread"] < 0.02, (size, answer["spread"])
        peaks.append(plan["peak"])
    assert found["1500MiB"][0] == found["1GiB"][0] == 0 and found["300MiB"][0] == 1
    assert peaks == sorted(peaks, reverse=True) and peaks[1] < peaks[0]


@pytest.mark.parametrize(
    "words, why",
    [
        (["--train-in", "lots"], "bytes"),
        (["--train-in", "0GiB"], "above 0"),
        (["--train-in", "1GiB", "--steps", "3"], "five"),
        (["--train-in", "1GiB", "--nproc", "2"], "one device"),
    ],
)
def test_a_budget_that_cannot_be_planned_for_is_refused(estimated, tmp_path, words, why):
    script = tmp_path / "train.py"
    script.write_text("")
    code, _, err = estimated(*words, script)
    assert code == 2 and why in err, err


def test_run_trains_a_program_within_a_budget(bench, tmp_path, real):
    binary = os.environ.get("STANDIN_GAPLESS")
    if not binary:
        pytest.skip("STANDIN_GAPLESS does not name the command")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + "print(torch.cuda.max_memory_allocated())")
    words = [binary, "run", "--train-in", "1GiB", "--", sys.executable, script]
    done = bench.start(words, GAPLESS_PROGRAM=binary)
    assert done.code == 0 and int(done.out) <= 1 << 30, done.out + done.err
    assert "gapless: Model: a step takes" in done.err, done.err
