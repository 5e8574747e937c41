"""Options from keywords and variables: values that are taken or refused, and the names in the refusal."""

import inspect
import re
from pathlib import Path

import pytest

import gapless
from gapless import GaplessWarning, OptionError
from gapless._options import OPTIONS, TABLE, WEIGHTS, collect, parse_bytes, text_for_library
from gapless.weights import _ways

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "text, count",
    [("60GiB", 60 << 30), ("512 MiB", 512 << 20), ("1.5g", 3 << 29), ("2GB", 2 * 10**9), (4096, 4096), ("1_000", 1000), ("0", 0)],
)
def test_sizes_mean_what_they_mean_on_the_command_line(text, count):
    assert parse_bytes(text) == count


def test_sizes_are_those_of_every_other_door():
    lines = (ROOT / "testdata/sizes.csv").read_text().splitlines()
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
    told = " ".join(gapless.enable.__doc__.partition('such as "60GiB".')[2].partition("Returns True")[0].split())
    assert told == " ".join(f"{row.name} {row.help}{f' ({row.default})' if row.default else ''}" for row in OPTIONS.values())


def test_enable_refuses_an_unknown_keyword_and_names_the_nearest():
    # enable() checks names before it imports torch, so a wrong one is found on any machine.
    with pytest.raises(OptionError, match="'resrve': did you mean reserve\\?"):
        gapless.enable(resrve="1GiB")
    # None does not make a wrong name valid.
    with pytest.raises(OptionError, match="'resrve': did you mean reserve\\?"):
        gapless.enable(resrve=None)
    with pytest.raises(OptionError, match="reserve=lots is not a number of bytes"):
        gapless.enable(reserve="lots")


def test_every_option_reads_its_own_default_and_example():
    for name, option in {**OPTIONS, **WEIGHTS}.items():
        assert option.help and option.default != option.example
        if option.scope != "weights":
            for text in filter(None, (option.default, option.example)):
                assert collect({name: text}, {}) == collect({}, {option.variable: text}) == {name: option.parse(text)}


@pytest.mark.parametrize("old, name, value", [("budget", "process_limit", "1GiB"), ("pages", "visible", False)])
def test_an_old_name_works_with_a_warning_and_the_own_name_wins(old, name, value):
    for door in (lambda **given: collect(given, {}), lambda **given: collect({}, {f"GAPLESS_{k.upper()}": str(v) for k, v in given.items()})):
        with pytest.warns(GaplessWarning, match=f"(?i)use .*{name}"):
            assert door(**{old: value}) == collect({name: value}, {})
        with pytest.warns(GaplessWarning):
            assert door(**{old: value, name: 7 if name == "process_limit" else True}) == {name: 7 if name == "process_limit" else True}


def test_ways_of_weights_are_read_from_variables_and_from_the_old_list():
    assert _ways._chosen({}) == {}
    new = {"GAPLESS_WEIGHTS_CACHED": "map", "GAPLESS_WEIGHTS_WINDOW": "1MiB", "GAPLESS_WEIGHTS_KEEP": "no"}
    wanted = {"weights_cached": "map", "weights_window": 1 << 20, "weights_keep": "no"}
    assert _ways._chosen(new) == wanted
    with pytest.warns(GaplessWarning, match="old form"):
        assert _ways._chosen({"GAPLESS_WEIGHTS": "cached=map, window=1M,keep=no"}) == wanted
    with pytest.warns(GaplessWarning, match="old form"):
        assert _ways._chosen({"GAPLESS_WEIGHTS": "cached=copy", **new}) == wanted
    for name, text in (("CACHED", "fast"), ("CACHD", "map"), ("PIECE", "x"), ("PIECE", "0"), ("WINDOW", "")):
        with pytest.raises(OptionError, match=f"invalid GAPLESS_WEIGHTS_{name}="):
            _ways._chosen({f"GAPLESS_WEIGHTS_{name}": text})


def test_flags_of_run_take_their_help_from_the_table_and_are_called_like_their_options():
    text = (ROOT / "crates/gapless/src/cli/run.rs").read_text()
    for row in TABLE:
        assert row.flag in ("", "--" + row.name.replace("_", "-")), row.name
        assert (f"pub(crate) {row.name}:" in text) == bool(row.flag), row.name
        assert (f'help = help("{row.name}")' in text) == bool(row.flag and row.scope != "host"), row.name


def test_the_page_for_python_has_the_rows_of_the_table():
    def code(text):
        return f" `{text}`" if text else ""

    page = (ROOT / "docs/python.md").read_text().partition("| keyword | variable | default | meaning |\n|---|---|---|---|\n")[2]
    wanted = [
        f"|{code(row.name if row.name in OPTIONS else '')} |{code(f'{row.variable}={row.example}')} |{code(row.default)} "
        f"| {row.help}{f' ([{row.page}]({row.page}))' if row.page else ''} |"
        for row in TABLE
        if row.scope not in ("host", "inner")
    ]
    assert page.partition("\n\n")[0].splitlines() == wanted
    host = (ROOT / "docs/host.md").read_text()
    assert [row.name for row in TABLE if row.scope == "host" and not all(re.search(word + "(?![a-zA-Z_-])", host) for word in (row.variable, row.flag))] == []


def test_every_variable_that_code_or_a_page_names_is_in_the_table():
    """The library reads its own rows: crates/gapless-torch/src/options.rs compares them."""
    known, old = {row.variable for row in TABLE}, {"GAPLESS_" + row.old.upper() for row in TABLE if row.old}
    header = (ROOT / "include/gapless.h").read_text()
    named, unknown = set(), {}
    for folder, endings in (("crates", (".rs",)), ("python/gapless", (".py",)), ("python/packaging", (".py",)), ("card", (".c",)), ("docs", (".md",))):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix not in endings or {"tests", "examples"} & set(path.parts):
                continue
            text = path.read_text()
            for name in set(re.findall(r"GAPLESS_[A-Z_]*", text)):
                if name in known:
                    named.add(name)
                # Else it may be a family of variables, a word of the C header, a guard or a constant.
                elif not (name.endswith(("_", "_H")) or name in header or f"const {name}:" in text):
                    unknown[name] = str(path)
    assert unknown == {}
    assert old.isdisjoint(named)
    assert [row.variable for row in TABLE if row.scope in ("host", "place", "inner") and row.variable not in named] == []
