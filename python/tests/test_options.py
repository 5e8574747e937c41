"""Options from keywords and variables: values that are taken or refused, and the names in the refusal."""

import inspect
from pathlib import Path

import pytest

import gapless
from gapless import OptionError
from gapless._options import OPTIONS, collect, parse_bytes, text_for_library
from gapless.weights import _ways


@pytest.mark.parametrize(
    "text, count",
    [("60GiB", 60 << 30), ("512 MiB", 512 << 20), ("1.5g", 3 << 29), ("2GB", 2 * 10**9), (4096, 4096), ("1_000", 1000), ("0", 0)],
)
def test_sizes_mean_what_they_mean_on_the_command_line(text, count):
    assert parse_bytes(text) == count


def test_sizes_are_those_of_every_other_door():
    lines = (Path(__file__).parents[2] / "testdata/sizes.csv").read_text().splitlines()
    rows = [line.split("|") for line in lines if not line.startswith("#")]
    assert len(rows) > 40
    for text, count, _ in rows:
        for read in (parse_bytes, _ways.rate):
            # A rate of 0 is invalid.
            if count.isdigit() and (int(count) > 0 or read is parse_bytes):
                assert read(text) == int(count), text
            else:
                with pytest.raises((ValueError, OptionError)):
                    read(text)


@pytest.mark.parametrize("text", ["", "GiB", "-1", -1, "20 apples", "1e9", "2000000TiB", "1.2.3", True, None, 1.5j])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(OptionError, match="60GiB"):
        if text is None:
            collect({}, {"GAPLESS_RESERVE": "None"})
        collect({"reserve": text}, {})


def test_a_keyword_wins_over_its_variable():
    environ = {"GAPLESS_RESERVE": "1GiB", "GAPLESS_STATS": "1", "PATH": "/bin"}
    assert collect({"reserve": "2GiB"}, environ) == {"reserve": 2 << 30, "stats": True}


def test_a_keyword_of_none_is_as_if_it_were_not_there():
    assert collect({"reserve": None}, {"GAPLESS_RESERVE": "1GiB"}) == {"reserve": 1 << 30}


@pytest.mark.parametrize(
    "variable, nearest",
    [("GAPLESS_RESRVE", "GAPLESS_RESERVE"), ("GAPLESS_STAT", "GAPLESS_STATS"), ("GAPLESS_reserve", "GAPLESS_RESERVE")],
)
def test_an_unknown_variable_is_an_error_that_names_the_nearest(variable, nearest):
    with pytest.raises(OptionError, match=f"{variable}: did you mean {nearest}\\?"):
        collect({}, {variable: "1"})


def test_an_unknown_keyword_is_an_error_that_names_the_nearest():
    with pytest.raises(OptionError, match="'larges_page': did you mean largest_page\\?"):
        collect({"larges_page": 1}, {})


def test_variables_that_are_no_options_are_left_alone():
    assert collect({}, {"GAPLESS_RUN": "1", "GAPLESS_LIBRARY": "/x.so", "GAPLESS": "1", "GAPLESSLY": "1"}) == {}


@pytest.mark.parametrize(
    "name, value, wanted",
    [("largest_page", "3MiB", "power of two"), ("slack", "-1", "whole number"), ("stats", "perhaps", "1 or 0"), ("limit", "0", "above 0")],
)
def test_a_wrong_value_says_what_it_should_be(name, value, wanted):
    with pytest.raises(OptionError, match=f"GAPLESS_{name.upper()}={value} is not .*{wanted}"):
        collect({}, {f"GAPLESS_{name.upper()}": value})


def test_the_library_reads_bytes_and_only_its_own_options():
    chosen = collect({"reserve": "1GiB", "largest_page": "4MiB", "stats": True, "overlay": False}, {})
    assert text_for_library(chosen) == f"largest_page={4 << 20};reserve={1 << 30}"
    assert text_for_library({}) == ""


def test_every_option_is_a_typed_keyword_of_enable_and_is_explained_there():
    keywords = inspect.signature(gapless.enable).parameters.values()
    named = [keyword.name for keyword in keywords if keyword.kind is inspect.Parameter.KEYWORD_ONLY]
    assert sorted(named) == sorted(OPTIONS)
    assert all(keyword.annotation is not inspect.Parameter.empty for keyword in keywords)
    assert all(f"\n    {name} " in gapless.enable.__doc__ for name in named)


def test_enable_refuses_an_unknown_keyword_and_names_the_nearest():
    # enable() checks names before it imports torch, so a wrong one is found on any machine.
    with pytest.raises(OptionError, match="'resrve': did you mean reserve\\?"):
        gapless.enable(resrve="1GiB")
    # None does not make a wrong name valid.
    with pytest.raises(OptionError, match="'resrve': did you mean reserve\\?"):
        gapless.enable(resrve=None)
    with pytest.raises(OptionError, match="reserve=lots is not a number of bytes"):
        gapless.enable(reserve="lots")


def test_every_option_has_a_line_of_help():
    assert all(option.help for option in OPTIONS.values())
