"""Reports, comparisons and checks as Python objects, by the real program on recorded runs."""

import html.parser
import os
import sys
import types
from pathlib import Path

import pytest

import gapless
from gapless import _program, _report, _summary

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "testdata" / "cases"
NEWER = ROOT / "testdata" / "newer"


@pytest.fixture(autouse=True)
def program(monkeypatch):
    binary = os.environ.get("STANDIN_GAPLESS")
    if not binary:
        pytest.skip("STANDIN_GAPLESS does not name the command")
    monkeypatch.setenv("GAPLESS_PROGRAM", binary)


class Tags(html.parser.HTMLParser):
    """The tags of a text, which must be balanced."""

    def __init__(self, text):
        super().__init__()
        self.seen, self.open, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_a_report_has_the_figures_of_the_run():
    report = gapless.report(CASES / "leak.pickle.gz")
    assert report.peak_reserved == 299892736 == report.json["devices"][0]["peak_reserved"]
    assert report.fragmentation == pytest.approx(1 - report.peak_allocated / report.peak_reserved)
    assert sum(report.kinds.values()) > 0 and set(report.kinds) == set(report.json["devices"][0]["kinds"]["at_peak"])
    assert report.holders[0].bytes >= report.holders[1].bytes > 0
    assert [finding.code for finding in report.findings] == [finding["code"] for finding in report.json["findings"]]
    assert len(report.devices) == 1 and report.host is None
    assert str(report) == report.text and "peak" in report.text and "\x1b" not in report.text
    assert "leak.pickle.gz" in repr(report)


def test_notes_of_the_program_and_the_host_are_in_it():
    report = gapless.report(NEWER / "train_2_15.pickle.gz", top=20)
    modules = [holder.module for holder in report.holders if holder.module]
    assert modules == ["model.layers.*.weight"]
    weights = next(holder for holder in report.holders if holder.module)
    assert weights.count == 4 and weights.label.startswith("model.layers.*.weight · make.py:")
    assert "model.layers.3.weight" in weights.notes
    assert report.host["peak_held"] == 8392960
    assert any("pinned host memory" in note for note in report.notes)
    assert "model.layers.*.weight" in report.text


def test_the_summary_is_html_without_scripts_and_with_every_name_escaped():
    report = gapless.report(NEWER / "train_2_15.pickle.gz")
    evil = '<script>alert(1)</script>"x'
    holder = gapless.Holder(label=evil, bytes=5, count=1, share=0.5, kind=evil)
    device = report.devices[0]
    report.devices = (gapless.Device(0, 5, None, None, device.kinds, (holder,), device.json),)
    report.findings = (gapless.Finding("GAP1", evil, evil, help=evil),)
    report.path = f"/x/{evil}"
    tags = Tags(report._repr_html_())
    assert {tag for tag, _ in tags.seen} <= {"div", "style", "b", "p", "h4", "span", "i", "table", "tr", "td"}
    assert not any(name.startswith("on") for _, attrs in tags.seen for name in attrs)
    text = "".join(tags.words)
    assert evil in text and "unknown" in text and "Pinned host memory" in text
    assert "prefers-color-scheme:dark" in text


def test_the_page_is_written_and_framed(tmp_path, monkeypatch):
    report = gapless.report(CASES / "leak.pickle.gz")
    path = report.html(tmp_path / "page.html")
    assert path.read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html")
    monkeypatch.setattr(_summary, "in_notebook", lambda: True)
    (frame,) = Tags(report.show(height=300)._repr_html_()).seen
    assert frame[0] == "iframe" and "allow-same-origin" not in frame[1]["sandbox"]
    assert frame[1]["srcdoc"].lstrip().lower().startswith("<!doctype html")
    opened = []
    monkeypatch.setattr(_summary, "in_notebook", lambda: False)
    monkeypatch.setattr(_summary.webbrowser, "open", opened.append)
    shown = report.show()
    assert opened == [shown.as_uri()] and shown.read_text(encoding="utf-8").startswith("<!")
    shown.unlink()


def test_runs_are_compared_and_checked():
    before, after = CASES / "leak.pickle.gz", CASES / "leak.pickle.gz"
    diff = gapless.diff(before, after)
    assert diff.json["schema"].startswith("gapless.diff/") and str(diff) == diff.text
    assert Tags(diff._repr_html_()).seen[0][0] == "div"
    assert gapless.check(before, max_peak_reserved="1GiB")
    # Each flag that takes a size takes a number of bytes.
    for name in ("max_peak_reserved", "max_peak_allocated", "max_growth_per_step"):
        assert {row["limit"] for row in gapless.check(before, **{name: 1000}).json["rows"]} == {1000}
    over = gapless.check(before, max_peak_reserved=1000, max_fragmentation=0.9)
    assert not over and not over.passed and [row["passed"] for row in over.json["rows"]] == [False, True]
    assert "over" in str(over)


@pytest.mark.parametrize("columns", [None, "40"])
def test_errors_are_the_programs_own_words(tmp_path, monkeypatch, columns):
    # The message is one line, which no width of a terminal wraps.
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(gapless.GaplessError, match="there is no such file; check the path") as caught:
        gapless.report(tmp_path / "none.pickle")
    assert not str(caught.value).startswith("error")
    (tmp_path / "prose").write_text("not a trace at all, just some prose")
    with pytest.raises(gapless.GaplessError, match="prose"):
        gapless.report(tmp_path / "prose")
    with pytest.raises(gapless.GaplessError, match="invalid size"):
        gapless.check(CASES / "leak.pickle.gz", max_peak_reserved="20XiB")
    with pytest.raises(gapless.GaplessError, match="was not found"):
        os.environ["GAPLESS_PROGRAM"] = "/none"
        gapless.diff("a", "b")


def test_the_message_of_the_program_is_found_behind_warnings():
    assert _program.message("warning: old\nerror: it broke\nhelp: mend it\n") == "it broke\nhelp: mend it"
    assert _program.message("error: it broke") == "it broke"
    assert _program.message("something else") == "something else"


def fake_torch(source, initialized=True, records=True):
    """As much of torch as a report on the own process asks."""
    memory = types.SimpleNamespace(
        _dump_snapshot=lambda path: Path(path).write_bytes(source.read_bytes()),
        _snapshot=lambda: {"device_traces": [[]]},
    )
    cuda = types.SimpleNamespace(is_initialized=lambda: initialized, memory=memory)
    return types.SimpleNamespace(cuda=cuda, _C=types.SimpleNamespace(_cuda_isHistoryEnabled=lambda: records))


def test_without_a_file_the_process_itself_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", fake_torch(CASES / "leak.pickle.gz"))
    report = gapless.report()
    assert report.peak_reserved == 299892736
    # The file is still there for later questions, and goes with the report.
    path = report.path
    assert os.path.exists(path) and report.text
    del report
    assert not os.path.exists(path)


def test_a_process_without_a_recording_is_told_what_to_add(monkeypatch):
    for torch, reason in [
        (None, "has not imported torch"),
        (fake_torch(CASES / "leak.pickle.gz", initialized=False), "has not used the GPU"),
        (fake_torch(CASES / "leak.pickle.gz", records=False), "no memory history"),
    ]:
        if torch is None:
            monkeypatch.delitem(sys.modules, "torch", raising=False)
        else:
            monkeypatch.setitem(sys.modules, "torch", torch)
        with pytest.raises(gapless.GaplessError, match=reason) as caught:
            gapless.report()
        assert "_record_memory_history(max_entries=1_000_000)" in str(caught.value)
    assert _report.RECORD.count("\n") == 2
