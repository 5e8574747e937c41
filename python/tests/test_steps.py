"""Steps that repeat are served from a plan; if they don't, nothing is lost."""

import json
import textwrap

START = """
import gapless, json, torch
gapless.enable(**OPTIONS)
MIB = 1 << 20
def of(size):
    return torch.empty(int(size), dtype=torch.uint8, device="cuda")
weights = [torch.nn.Parameter(torch.empty(2 * MIB + 4096 * i, device="cuda", dtype=torch.float32)) for i in range(12)]
optimizer = torch.optim.SGD(weights, lr=0.1, momentum=0.9)
def train(scale=1):
    saved = []
    for i in range(12):
        saved.append(of((3 * MIB + 512 * i) * scale))
        temporary = of(7 * MIB * scale)
        saved.append(of(2 * MIB * scale))
        del temporary
    for i, weight in enumerate(weights):
        temporary = of(5 * MIB * scale)
        del saved[-2:]
        weight.grad = torch.empty_like(weight)
    optimizer.step()
    optimizer.zero_grad()
def figures():
    return {key: value for key, value in gapless.stats().items() if key.startswith("gapless.")}
def until_planned(step=train):
    # The planner has a thread of its own: how soon its plan is there is not ours to say.
    for _ in range(1000):
        step()
        if figures()["gapless.plan.served"]:
            return
    raise AssertionError(figures())
"""


def run(real, program, options="dict()", **environment):
    done = real.passes(START.replace("OPTIONS", options) + textwrap.dedent(program), **environment)
    return json.loads(done.out)


def test_a_step_that_repeats_is_served_from_a_plan(real):
    program = """
        until_planned()
        train()
        before = figures()
        for _ in range(10): train()
        print(json.dumps([before, figures()]))
    """
    before, after = run(real, program)
    assert after["gapless.plans"] == 1
    requests = after["gapless.plan.requests"] - before["gapless.plan.requests"]
    assert requests == 10 * 60
    assert after["gapless.plan.served"] - before["gapless.plan.served"] == requests and after["gapless.plan.missed"] == 0
    assert after["gapless.plan.steps"] - before["gapless.plan.steps"] == 10


def test_from_then_on_no_driver_call(real):
    program = """
        until_planned()
        for _ in range(2): train()
        before = figures()
        for _ in range(10): train()
        print(json.dumps([before, figures()]))
    """
    before, after = run(real, program)
    for key in ("gapless.pages_created", "gapless.pages_mapped", "gapless.host_waits", "gapless.driver_ns"):
        assert after[key] == before[key], key


def test_a_plan_is_put_in_place_before_the_step_that_it_serves(real):
    program = """
        def step():
            blocks = [of(2 * MIB + 512 * i) for i in range(48)]
            for weight in weights: weight.grad = torch.empty_like(weight)
            optimizer.step()
            blocks.clear()
            optimizer.zero_grad()
        seen = []
        for _ in range(1000):
            before = figures()
            step()
            after = figures()
            calls = sum(after[f"gapless.{key}"] - before[f"gapless.{key}"] for key in ("pages_created", "pages_mapped", "host_waits"))
            seen.append([after["gapless.plan.served"] - before["gapless.plan.served"], calls])
            if len(seen) > 5 and seen[-3][0]: break
        print(json.dumps(seen))
    """
    seen = run(real, program)
    first = next(step for step, (served, _) in enumerate(seen) if served)
    # Every step that is served from it, the first one too: all requests, and no driver call; those were made after
    # zero_grad of the step before.
    assert all(row == [60, 0] for row in seen[first:]), seen
    assert seen[first - 1][1] > 0, seen


def test_zero_grad_is_still_itself(real):
    program = """
        import inspect
        optimizer.zero_grad(set_to_none=False)
        assert "set_to_none" in inspect.signature(torch.optim.Optimizer.zero_grad).parameters
        assert torch.optim.Optimizer.zero_grad.__name__ == "zero_grad"
        weights[0].grad = torch.empty_like(weights[0])
        optimizer.zero_grad()
        print(json.dumps(weights[0].grad is None))
    """
    assert run(real, program) is True


def test_plans_can_be_switched_off(real):
    program = "for _ in range(12): train()\nprint(json.dumps(figures()))"
    assert run(real, program, "dict(plans=False)")["gapless.plan.requests"] == 0
    assert run(real, program, GAPLESS_PLANS="0")["gapless.plan.requests"] == 0


def test_another_shape_is_served_all_the_same(real):
    program = """
        until_planned()
        for step in range(12): train(1 + step % 3)
        for _ in range(6): train(2)
        torch.cuda.empty_cache()
        for _ in range(6): train()
        live = torch.cuda.memory_allocated()
        print(json.dumps([live, sum(w.numel() * 4 for w in weights) * 2, figures()["gapless.plan.served"]]))
    """
    live, kept, served = run(real, program)
    assert live == kept and served > 0


def test_a_program_may_mark_its_own_steps(real):
    program = """
        def step():
            gapless.step()
            blocks = [of(2 * MIB + 512 * i) for i in range(40)]
        until_planned(step)
        print(json.dumps(figures()))
    """
    assert run(real, program)["gapless.plan.served"] > 0
