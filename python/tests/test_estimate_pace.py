"""How far an estimate runs a script: to its end, until nothing new comes, until its time is over; and its words."""

import random

import pytest

from gapless._errors import GaplessError
from gapless._estimate import bars, loops, pace, seen
from gapless._estimate.assumed import Assumptions, parse, shaped
from gapless._estimate.unknown import Unknown

MIB = 1 << 20


class Run:
    """Steps of a program, by their peaks, each with a second of computing."""

    def __init__(self, peaks, wanted=None, seconds=60.0, each=1.0):
        self.now, self.done = 0.0, 0
        self.pace = pace.Pace(wanted, seconds, clock=lambda: self.now)
        blocks = size = 0
        try:
            for number, peak in enumerate(peaks):
                self.pace.called()
                self.pace.steps_next([number] if number else [])
                self.now += each
                blocks, size = blocks + 10, size + peak
                self.pace.stepped({"allocation.all.allocated": blocks, "allocated_bytes.all.allocated": size}, peak)
                self.done += 1
        except pace.Enough:
            pass


def test_a_short_program_runs_to_its_end_and_a_long_one_until_nothing_new_comes():
    assert (Run([5] * 12).done, Run([5] * 12).pace.stopped) == (12, None)
    # Steps that are alike are stopped once they have settled, and no sooner than after two thirds of their time.
    long = Run([7] + [5] * 1000)
    assert long.pace.stopped == "settled" and 40 < long.done < 50
    assert 20 < Run([7] + [5] * 1000, seconds=None).done < 40
    # One whose steps go on to differ is stopped by its time, and without a limit not at all.
    numbers = random.Random(0)
    peaks = [numbers.randrange(1000) for _ in range(300)]
    cut = Run(peaks)
    assert cut.pace.stopped == "time" and 60 <= cut.done <= 65 and cut.pace.varies
    assert Run(peaks, seconds=None).done == 300
    # A few kinds of batches by turns have settled as soon as all were seen twice.
    assert Run([1, 2, 3, 4] * 100).pace.stopped == "settled"
    # A number of steps that is asked for is kept in any case.
    for wanted in (1, 3, 50):
        assert Run(peaks, wanted=wanted).done == wanted and Run(peaks, wanted=wanted).pace.stopped == "steps"


def test_nothing_new_means_that_no_larger_step_is_among_the_last():
    numbers = random.Random(1)
    for _ in range(200):
        kinds = [numbers.randrange(1, 9) for _ in range(numbers.randrange(1, 5))]
        steps = [numbers.choice(kinds) for _ in range(60)]
        if numbers.random() < 0.5:
            steps[numbers.randrange(60)] = 100
        one = Run(steps, seconds=None, each=10.0)
        seen_steps = one.pace.steps
        if one.pace.stopped == "settled":
            assert max(step.peak for step in seen_steps[-8:]) <= max(step.peak for step in seen_steps[1:-8])
        assert one.pace.largest["peak"] == max(step.peak for step in seen_steps)


def found(one, **more):
    return {"notes": [], "peak_allocated": 100, "choices": [], "reads": [], "steps": one.done, **one.pace.json, **more}


def test_a_program_that_was_stopped_while_its_steps_differ_has_a_wide_bar_and_says_at_least():
    from gapless._estimate.cards import card

    numbers = random.Random(2)
    for steps in (3, 6, 20):
        peaks = [numbers.randrange(500, 1000) for _ in range(100)]
        cut = found(Run(peaks, wanted=steps))
        assert bars.at_least(cut) and bars.bars(cut, card("h200"))["peak_allocated"] > cut["spread"] * (1 + 5 / steps)
        text = " ".join(seen.told(cut))
        assert f"over {steps} steps" in text and "shapes vary" in text and "--until-stable" in text and "largest batch" in text
    alike = found(Run([5] * 100, wanted=3))
    assert bars.at_least(alike) and bars.bars(alike, card("h200"))["peak_allocated"] < 0.01
    assert "an evaluation, is not counted" in " ".join(seen.told(alike))
    whole = found(Run([5, 6, 9, 4]))
    assert not bars.at_least(whole) and "to the end of the program" in seen.told(whole)[0]


def test_masks_that_chose_nothing_and_could_choose_much_say_at_least():
    whole = Run([5, 6, 9, 4])
    for size, function, more in ((50, "the size of __getitem__", True), (1, "the size of nonzero", False), (50, "topk", False), (3, "the size of where", True)):
        choice = {"place": "prune.py:3", "function": function, "times": 1, "bytes": size}
        assert bars.at_least(found(whole, choices=[choice])) == more, (size, function)


def test_a_model_that_is_stepped_here_runs_until_two_steps_are_alike():
    def run(peaks, wanted=None):
        one, total = pace.Pace(wanted, None), [0]

        def measured(step):
            total[0] += peaks[step]
            return {"allocation.all.allocated": step, "allocated_bytes.all.allocated": total[0]}, peaks[step]

        return len(list(one.numbers(measured))), one.stopped

    assert run([9, 5, 5, 5, 5]) == (3, None)
    assert run([9, 5, 6, 7, 7, 7]) == (5, "batches") or run([9, 5, 6, 7, 7, 7]) == (5, None)
    assert run([9, 5, 6, 7, 8], wanted=2)[0] == 2


def test_numbers_that_are_not_known_print_as_such_and_say_what_they_decide():
    told = []
    before, Unknown.told = Unknown.told, lambda question: told.append(question)
    try:
        loss = Unknown(1e-12)
        mean = (loss + 3 * loss - 1) / 2
        assert f"{loss:.4f} {loss:8.3f}|{loss:<6}|{mean:>7.2e}" == "?        ?|?     |      ?" and str(round(loss, 4)) == "?"
        assert f"{sum([loss, loss])}" == "?" and float(mean) == mean and told.pop() == "__eq__"
        assert not told
        assert loss < 5 and told == ["__lt__"]
        Unknown.told = lambda question: False
        assert not loss < 5 and not bool(loss < 5)
    finally:
        Unknown.told = before


def test_assumptions_are_read_strictly_and_belong_to_a_line():
    assert parse("train.py:42=true") == ("train.py", 42, True)
    assert parse("/a b/loss.py:7=[3, 5]").value == [3, 5] and parse("x.py:1=-2.5").value == -2.5
    for wrong in ("train.py=3", "train.py:x=3", ":3=4", "train.py:3", "train.py:3=", "train.py:3=__import__('os')", "a.py:1='x'", "a.py:1=[]"):
        with pytest.raises(GaplessError, match="FILE:LINE=VALUE"):
            parse(wrong)
    given = Assumptions([parse("train.py:42=true"), parse("lib/loss.py:7=3")])
    assert given.at("/home/me/train.py:42") is True and given.at("/home/me/mytrain.py:42") is None and given.at("/home/me/train.py:43") is None
    assert given.at("/x/lib/loss.py:7") == 3 and given.at("/x/loss.py:7") is None and given.unused == []
    assert shaped(3, 0) == 3 and shaped(True, False) is True and shaped(2, [0, [0.0]]) == [2, [2.0]] and shaped([4, 5], [0, 0]) == [4, 5]


# ---- whole programs ----

GROWING = """
    import sys, torch
    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = [256, 512, 256, 1024, 4096, 8192, 128]
    for step, count in enumerate(rows):
        loss = model(torch.randn(count, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"loss {loss.item():.4f}")
    evaluated = torch.empty(1 << 29, dtype=torch.uint8, device="cuda") if "evaluate" in sys.argv else None
"""


def test_later_batches_and_an_evaluation_count(script):
    code, whole, err = script(GROWING)
    assert code == 0 and whole["steps"] == 7 and whole["stopped"] is None and whole["varies"] and not whole["at_least"], err
    assert whole["largest"]["step"] == 6 and "[8192, 1024]" in whole["largest"]["inputs"] and "loss ?" in err
    code, cut, err = script(GROWING, "--steps", "3")
    assert code == 0 and cut["steps"] == 3 and cut["stopped"] == "steps" and cut["at_least"], err
    assert cut["peak_allocated"] < whole["peak_allocated"] and cut["bars"]["peak_allocated"] > 0.2
    code, evaluated, err = script(GROWING, arguments=["evaluate"])
    assert code == 0 and evaluated["peak_allocated"] >= 1 << 29 and "to the end of the program" in " ".join(seen.told(evaluated)), err


# A loop, the answer that its condition got, and whether it may make more rounds on a card.
LOOPS = (
    ("while t < 1:\n    t = t + h", 1, "true", True),
    ("while not done:\n    step()", 1, "false", True),
    ("while True:\n    step()\n    if small:\n        break", 3, "false", True),
    ("for _ in range(9):\n    if all_done:\n        break", 2, "false", False),
    ("for _ in range(9):\n    if all_done:\n        break", 2, "true", True),
    ("for _ in range(9):\n    if not changed:\n        break", 2, "true", False),
    ("for _ in range(9):\n    if not changed:\n        break", 2, "false", True),
    ("for _ in range(9):\n    if loss < 3:\n        break", 2, "a number next to 0", True),
    ("for _ in range(9):\n    if loss < 3:\n        save()", 2, "a number next to 0", False),
    ("for _ in range(9):\n    if bad or all_done:\n        break", 2, "false", True),
    ("for _ in range(9):\n    def f():\n        if late:\n            return 1", 3, "true", False),
    ("def f():\n    for x in y:\n        if found:\n            return x", 3, "true", True),
    ("if rare:\n    step()", 1, "false", False),
    ("while (", 1, "true", False),
)


def test_a_loop_whose_rounds_are_not_known_says_at_least(tmp_path):
    for number, (source, line, answer, more) in enumerate(LOOPS):
        file = tmp_path / f"loop{number}.py"
        file.write_text(source)
        assert loops.open_ended(f"{file}:{line}", answer) == more, (source, answer)
    assert not loops.open_ended("torch", "true") and not loops.open_ended(str(tmp_path / "none.py:3"), "true")
    assert bars.at_least(found(Run([5, 6, 9, 4]), open_loops=["solve.py:3"]))


def test_a_solver_that_ends_by_its_error_may_make_more_rounds(script):
    program = """
        import torch
        rate = torch.nn.Linear(64, 64).cuda()
        y = torch.ones(64, 64, device="cuda")
        error = rate(y).abs().max()
        while error > 1e-3:
            y = y + rate(y)
            error = rate(y).abs().max() / 2
    """
    code, answer, err = script(program)
    assert code == 0 and answer["at_least"] and [place[-10:] for place in answer["open_loops"]] == ["train.py:6"], (err, answer["decided"])
    assert "the loop there may make more rounds" in " ".join(answer["assumptions"])


def test_a_value_that_steers_is_named_and_can_be_said(script):
    program = """
        import torch
        weight = torch.nn.Linear(64, 64).cuda().weight
        held = []
        for _ in range(4):
            score = weight.std() + weight.mean()
            if score > 5:
                held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
            if score.item() > 7:
                held.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    """
    code, without, err = script(program)
    assert code == 0 and without["peak_allocated"] < 64 * MIB, err
    assert [place.rpartition("train.py:")[2] for place in without["decided"]] == ["7", "9"], without["decided"]
    assert "--assume train.py:7=VALUE" in " ".join(without["assumptions"])
    code, told, err = script(program, "--assume", "train.py:7=true", "--assume", "train.py:9=true", "--assume", "train.py:1=3")
    assert code == 0 and told["peak_allocated"] >= 4 * 65 * MIB and told["decided"] == {}, (err, told.get("decided"))
    assert "nothing was assumed at train.py:1" in " ".join(told["assumptions"])


def test_a_program_that_fails_is_told_in_words_with_what_it_read_before(script):
    program = """
        import torch
        weight = torch.nn.Linear(4, 4).cuda().weight
        places = weight.sign().long().unique()
        count = int(weight.sign().long().sum())
        print([1, 2, 3][count + 7])
    """
    code, _, err = script(program)
    said = err[err.index("error:") :]
    assert code == 2 and "IndexError" in said and "train.py:6" in said and "train.py:5" in said and "--assume train.py:5=VALUE" in said, err
    assert "Traceback" not in said and "failed on the card" not in said
    # If a script ends itself, the message says so, with its line.
    for end, said in (
        ("sys.exit(3)", "exit code 3"),
        ("sys.exit('no data in shards/')", 'by itself with "no data in shards/"'),
        ("raise SystemExit(True)", "True"),
    ):
        code, _, err = script(f"import sys, torch\ntorch.zeros(3, device='cuda')\n{end}\n")
        assert code == 2 and "the script ended" in err and said in err and "train.py:3" in err, err
    code, _, err = script("import torch\ntorch.zeros(3, device='cuda')[5]\n")
    assert code == 2 and "IndexError" in err and "most likely ends like this on a GPU" in err, err
