"""Programs under test run in processes of their own: stock torch over the card of torch-bench/python, started as a
user starts them.

STANDIN_LIB is the folder with the card's libraries (`cargo xtask test-torch` builds it and sets this); GAPLESS_LIBRARY
the library under test: the double, or the real one. Without STANDIN_LIB only tests that need no torch run.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from unittest import mock

import pytest

from warm import Warm

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "gapless"
# Taken out of the environment, which tests check; kept under another name for processes that run tests side by side.
LIBRARY = os.environ.pop("GAPLESS_LIBRARY", None) or os.environ.get("STANDIN_LIBRARY")
if LIBRARY:
    os.environ["STANDIN_LIBRARY"] = LIBRARY

sys.path.insert(0, str(ROOT / "python"))


class Done:
    def __init__(self, finished):
        self.code, self.out, self.err = finished.returncode, finished.stdout, finished.stderr

    def lines(self):
        return self.out.splitlines()


class Bench:
    """Starts programs over the card. `double` says whether the library under test is the double."""

    def __init__(self, standin, warm=None):
        self.standin = Path(standin)
        self.library = LIBRARY or str(self.standin / "libgapless_torch_double.so")
        self.double = "double" in os.path.basename(self.library)
        self.warm = warm

    def environment(self, **changes):
        plain = {key: value for key, value in os.environ.items() if not key.startswith(("GAPLESS_", "PYTHON", "PYTORCH_", "PYTEST_"))}
        plain.update(
            LD_PRELOAD=f"{self.standin / 'libcuda.so.1'}:{self.standin / 'libgapless-card.so'}",
            LD_LIBRARY_PATH=str(self.standin),
            PYTHONPATH=str(ROOT / "python"),
            PYTHONDONTWRITEBYTECODE="1",
            GAPLESS_LIBRARY=self.library,
            # Failures that are tested leave no files in the folder of the tests.
            GAPLESS_OOM_DIR="off",
        )
        plain.update(changes)
        return {key: value for key, value in plain.items() if value is not None}

    def start(self, command, folder=None, cold=False, **environment):
        """Runs a command to its end. With --warm a Python program runs in a fork of an interpreter that has torch,
        unless it is about the start of one, or is `cold`: about whole stacks, which have one frame more in a fork."""
        words, variables = [str(word) for word in command], self.environment(**environment)
        at = next((at for at, word in enumerate(words) if at and not word.startswith(("-W", "-X"))), 0)
        is_program = at > 0 and words[0] == sys.executable and (words[at] == "-c" or not words[at].startswith("-"))
        about_the_start = {"GAPLESS_RUN", "PYTHONPATH", "LD_PRELOAD"} & set(environment)
        if self.warm is not None and is_program and not (about_the_start or cold):
            return Done(self.warm.run(words[1:at], words[at:], variables, folder, timeout=300, whole_end=_is_about_ends()))
        finished = subprocess.run(words, env=variables, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        return Done(finished)

    def python(self, program, *options, **environment):
        return self.start([sys.executable, *options, "-c", textwrap.dedent(program)], **environment)

    def passes(self, program, *options, **environment):
        """Runs a program that must succeed, and returns what it printed."""
        done = self.python(program, *options, **environment)
        assert done.code == 0, done.out + done.err
        return done


def pytest_addoption(parser):
    parser.addoption("--only-double", action="store_true", help="only what the double alone can show")
    parser.addoption("--warm", action="store_true", help="fork programs from an interpreter that has imported torch (see warm.py)")
    parser.addoption("--without-torch", action="store_true", help="only what needs neither torch nor the card")


# Files of tests in which it matters how an interpreter ends.
ABOUT_ENDS = {"test_end.py", "test_forks.py", "test_regions_asleep.py"}


def _is_about_ends():
    return os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0].rpartition("/")[2] in ABOUT_ENDS


# Files that import torch themselves.
IMPORT_TORCH = {
    "test_estimate_configurations.py",
    "test_fit_into.py",
    "test_offload_values.py",
    "test_real_trainers.py",
    "test_stream.py",
    "test_stream_faults.py",
    "test_stream_generate.py",
    "test_weights.py",
    "test_weights_models.py",
    "test_weights_pretrained.py",
    "test_weights_save.py",
    "test_weights_saves.py",
}


def pytest_ignore_collect(collection_path, config):
    if config.getoption("--without-torch") and collection_path.name in IMPORT_TORCH:
        return True
    return None


def pytest_collection_modifyitems(config, items):
    """Leaves out tests that another run of the same suite has, so that a skip always means that no run has it.

    There are three runs: without torch, on the real library, and on the double the tests that only it can pass.
    """
    if config.getoption("--without-torch"):
        wanted = [item for item in items if "bench" not in item.fixturenames]
    elif config.getoption("--only-double"):
        wanted = [item for item in items if "double" in item.fixturenames]
    elif LIBRARY and "double" not in os.path.basename(LIBRARY):
        wanted = [item for item in items if "double" not in item.fixturenames]
    else:
        wanted = items[:]
    left_out = [item for item in items if item not in wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = wanted


@pytest.fixture(scope="session")
def bench(request):
    standin = os.environ.get("STANDIN_LIB")
    if not standin:
        pytest.skip("STANDIN_LIB is not set: run `cargo xtask test-torch`")
    warm = Warm() if request.config.getoption("--warm") else None
    yield Bench(standin, warm)
    if warm is not None:
        warm.end()


@pytest.fixture
def double(bench):
    if not bench.double:
        pytest.skip("only the double counts its calls")
    return bench


@pytest.fixture
def real(bench):
    if bench.double:
        pytest.skip("the double is no allocator")
    return bench


@pytest.fixture
def command(bench):
    """The program `gapless`."""
    binary = os.environ.get("STANDIN_GAPLESS")
    if not binary:
        pytest.skip("STANDIN_GAPLESS does not name the command")
    return binary


@pytest.fixture
def loader_file():
    """The library behind gapless.weights, built beside the one under test."""
    from gapless.weights import _native

    named = os.environ.get("STANDIN_LIBRARY")
    folders = [Path(named).parent] if named else []
    for folder in [*folders, Path(__file__).resolve().parents[2] / "target" / "debug"]:
        if (folder / _native.FILE_NAME).is_file():
            return str(folder / _native.FILE_NAME)
    pytest.skip(f"{_native.FILE_NAME} is not built: run `cargo build -p gapless-loader`")


@pytest.fixture
def loader(monkeypatch, loader_file):
    """Programs of this process use that library."""
    monkeypatch.setenv("GAPLESS_LOADER", loader_file)


@pytest.fixture
def estimated(bench):
    """Runs `gapless estimate WORDS`; its exit code, JSON and errors. With --warm the process over the card is a fork of
    one that has imported torch and `imports`, unless there are several ranks."""

    def run(*words, imports=()):
        words = ["--format", "json", *map(str, words)]
        surroundings = {"LD_PRELOAD": None, "LD_LIBRARY_PATH": None, "GAPLESS_CARD_LIBRARIES": str(bench.standin)}
        surroundings["GAPLESS_PROGRAM"] = os.environ.get("STANDIN_GAPLESS")
        if bench.warm is None or "--nproc" in words:
            done = bench.start([sys.executable, "-m", "gapless._estimate.command", *words], **surroundings)
        else:
            done = _in_a_fork(bench, words, surroundings, imports)
        return done.code, json.loads(done.out) if done.out.startswith("{") else {}, done.err

    return run


def _in_a_fork(bench, words, surroundings, imports):
    """The command in this process, and the one over the card as a fork of one that has torch."""
    from gapless._estimate import command, process

    child = "import sys; from pathlib import Path; from gapless._estimate import child; child.main(Path(sys.argv[1]))"

    def forked(asked, environment, folder, own_words, told):
        # The card reads these while torch is imported.
        own = {name: value for name, value in environment.items() if name not in ("GAPLESS_CARD", "GAPLESS_CARDS")}
        card = {name: environment[name] for name in ("GAPLESS_CARD", "GAPLESS_CARDS")}
        done = bench.warm.run([], ["-c", child, str(folder)], own, None, timeout=300, before=card, imports=imports)
        if own_words:
            sys.stderr.write(done.stdout + done.stderr)
        return done.returncode, done.stderr

    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(process, "run", forked), mock.patch.dict(os.environ, bench.environment(**surroundings), clear=True):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = command.main(words)
    return Done(subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue()))


@pytest.fixture
def script(estimated, tmp_path):
    """Estimates the text of a script."""

    def run(text, *options, arguments=()):
        file = tmp_path / "train.py"
        file.write_text(textwrap.dedent(text))
        return estimated(*options, file, "--", *arguments)

    return run


@pytest.fixture
def two_ranks():
    """Runs a program in two processes at once, each with its rank and a folder as arguments; both must succeed."""

    def run(program, folder):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        words = [sys.executable, "-c", textwrap.dedent(program)]
        ranks = [subprocess.Popen([*words, str(rank), str(folder)], env=environment, stderr=subprocess.PIPE, text=True) for rank in range(2)]
        for rank in ranks:
            _, told = rank.communicate(timeout=300)
            assert rank.returncode == 0, told

    return run
