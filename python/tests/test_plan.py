"""The packer from Python."""

import os

import pytest

import gapless


@pytest.fixture
def program(monkeypatch):
    binary = os.environ.get("STANDIN_GAPLESS")
    if not binary:
        pytest.skip("STANDIN_GAPLESS does not name the command")
    monkeypatch.setenv("GAPLESS_PROGRAM", binary)


BUFFERS = [
    {"id": "a", "lower": 0, "upper": 3, "size": 4},
    {"id": "b", "lower": 2, "upper": 5, "size": 4},
    {"id": "c", "lower": 5, "upper": 9, "size": 7},
]


def test_buffers_alive_together_do_not_overlap(program):
    answer = gapless.plan(BUFFERS)
    offsets = {buffer["id"]: buffer["offset"] for buffer in answer["buffers"]}
    assert (answer["peak"], answer["lower_bound"], answer["proven_optimal"]) == (8, 8, True)
    assert sorted([offsets["a"], offsets["b"]]) == [0, 4]


def test_what_does_not_fit_is_an_answer(program):
    answer = gapless.plan(BUFFERS, capacity=7)
    assert answer["fits"] is False
    assert sorted(answer["conflict"]) == ["a", "b"]


def test_a_wrong_question_is_an_error(program):
    with pytest.raises(gapless.GaplessError, match="lower 3 is not below upper 3"):
        gapless.plan([{"id": "a", "lower": 3, "upper": 3, "size": 4}])


def test_a_missing_program_says_what_to_do(monkeypatch):
    monkeypatch.setenv("GAPLESS_PROGRAM", "/none")
    with pytest.raises(gapless.GaplessError, match="pip install"):
        gapless.plan(BUFFERS)
