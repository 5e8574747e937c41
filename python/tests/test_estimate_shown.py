"""The output of `gapless estimate`: as wide as the terminal, in ASCII if that shows nothing else; its exit code."""

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gapless._errors import GaplessError
from gapless._estimate import command, shown
from gapless._estimate.answer import Estimate
from gapless._estimate.cards import card

PYTHON = Path(__file__).resolve().parents[1]
GIB = 1 << 30
# The result of a run, with every part that an answer can have.
FOUND = {
    "peak_allocated": 10 * GIB,
    "peak_reserved": 11 * GIB,
    "phases": [],
    "kinds": {"parameters": GIB, "gradients": GIB, "optimizer states": 2 * GIB, "activations and workspaces": 6 * GIB},
    "modules": [{"module": "model.decoder.layers.11.self_attention.output_projection", "kind": "activations and workspaces", "bytes": GIB}],
    "notes": [{"evidence": "assumed", "function": "cusparseSpMM", "calls": 3, "largest": 1 << 20}],
    "choices": [{"place": "/home/someone/training/router.py:88", "function": "topk", "times": 3, "bytes": 4096}],
    "reads": [{"place": "/home/someone/training/loop.py:12", "function": "item", "times": 3, "bytes": 0}],
    "decided": {},
    "steps": 40,
    "stopped": "time",
    "settled": False,
    "varies": True,
    "spread": 0.25,
    "largest": {"step": 17, "peak": 10 * GIB, "inputs": "[8, 2048], [8, 2048]"},
}


def answer(**changes):
    return Estimate({**FOUND, **changes}, card("h100"), b"")


class Stream(io.StringIO):
    """A stream that says which encoding it has."""

    encoding = "utf-8"


def test_lines_keep_to_any_width_and_lose_no_word():
    text = answer().text
    for width in range(40, 121):
        fitted = shown.fitted(text, width)
        for line in fitted.split("\n"):
            # A single word may be wider, because a path has to stay whole to be copied.
            assert len(line) <= width or len(line.split()) == 1, (width, line)
        assert fitted.split() == text.split(), width
        # A figure and its unit stay together.
        assert all(line.split()[0] not in ("B", "KiB", "MiB", "GiB") for line in fitted.split("\n")), width
    assert shown.fitted(text, 10_000) == text
    assert shown.fitted("  " + "x" * 50 + " y", 40) == "  " + "x" * 50 + "\n    y"
    assert [len(line) for line in shown.fitted("漢字" * 9 + " " + "漢字" * 9, 40).split("\n")] == [18, 20]


def test_the_width_is_what_columns_says_or_the_terminal_has():
    for said, width in (("100", 100), ("20", 40), ("500", 120), ("0", 80), ("wide", 80), ("", 80), ("-5", 80), ("²", 80)):
        assert shown.columns(Stream(), {"COLUMNS": said}) == width
    assert shown.columns(Stream(), {}) == 80
    reader, writer = pty.openpty()
    with os.fdopen(reader), os.fdopen(writer, "w") as terminal:
        for measured, width in ((97, 97), (30, 40), (200, 120), (0, 80)):
            fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, measured, 0, 0))
            assert shown.columns(terminal, {}) == width
            assert shown.columns(terminal, {"COLUMNS": "66"}) == 66


def test_a_locale_or_a_stream_without_utf8_gets_ascii():
    for surroundings, is_ascii in (
        ({}, False),
        ({"LANG": "C"}, True),
        ({"LANG": "POSIX"}, True),
        ({"LANG": "C.UTF-8"}, False),
        ({"LANG": "de_DE.utf8"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({"LANG": "de_DE@euro"}, True),
        ({"LANG": "C", "LC_ALL": "en_US.UTF-8"}, False),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "C"}, True),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "", "LC_ALL": ""}, False),
        ({"LANG": "en_US.UTF-8", "TERM": "dumb"}, True),
    ):
        assert shown.is_ascii(Stream(), surroundings) == is_ascii, surroundings
    for encoding, is_ascii in (("utf-8", False), ("UTF8", False), ("latin-1", True), ("ascii", True), (None, True)):
        stream = Stream()
        stream.encoding = encoding
        assert shown.is_ascii(stream, {}) == is_ascii, encoding
    text = answer(stopped=None).text
    assert "±" in text and shown.ascii_of(text).isascii() and "+-" in shown.ascii_of(text)


def test_the_locale_is_the_one_that_the_process_was_started_with():
    # Python changes C to C.UTF-8 for its own process.
    program = "import sys; from gapless._estimate.shown import shown; print(shown('a ± b ' * 20, sys.stdout))"
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG")) and key not in ("COLUMNS", "TERM")}
    for own, sign in (({"LANG": "C"}, "+-"), ({"LC_ALL": "C"}, "+-"), ({"LANG": "C.UTF-8"}, "±"), ({"PYTHONIOENCODING": "latin-1"}, "+-")):
        environment = {**plain, **own, "PYTHONPATH": str(PYTHON)}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True)
        out = done.stdout.decode("utf-8")
        assert f"a {sign} b" in out and all(len(line) <= 80 for line in out.splitlines()), (own, out)


@pytest.fixture
def ends(tmp_path, monkeypatch, capsys):
    """Runs the command over a run that ends like this; its exit code and what it printed."""
    file = tmp_path / "train.py"
    file.write_text("")

    def run(end, *options):
        def answered(job, kind, *_):
            if isinstance(end, BaseException):
                raise end
            return end

        monkeypatch.setattr(command, "run", answered)
        code = command.main([*options, str(file)])
        return code, *capsys.readouterr()

    return run


def test_the_exit_code_is_the_verdict(ends):
    huge = answer(peak_allocated=200 * GIB, peak_reserved=210 * GIB)
    for end, code in ((answer(), 0), (huge, 1)):
        for form in ("text", "json"):
            found, out, err = ends(end, "--format", form)
            assert found == code and out and not err, (code, form, err)
    # A failure of gapless itself ends with 2, because 1 would say that the program does not fit.
    for end, said in (
        (GaplessError("the program ended with IndexError"), "error: the program ended with IndexError"),
        (OSError(28, "No space left on device"), "No space left on device"),
        (KeyError("peak"), "KeyError"),
        (MemoryError(), "MemoryError"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "invalid start byte"),
    ):
        found, out, err = ends(end)
        assert found == 2 and not out and err.startswith("error: ") and said in err and "Traceback" not in err, (end, err)
    for wrong in (("--steps", "0"), ("--time-limit", "-1"), ("--assume", "x"), ("--device", "abacus"), ("--no-such-flag",)):
        found, out, err = ends(answer(), *wrong)
        assert found == 2 and not out and err.startswith("error: "), (wrong, err)
