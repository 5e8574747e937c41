"""`gapless run` and the hook below it: programs that do not mention Gapless, however Python is started."""

import sys

import pytest

from conftest import PACKAGE, ROOT

RUN = str(PACKAGE / "_run")
SAYS = "import gapless, torch; x = torch.empty(10, device='cuda'); print(gapless.enabled(), torch.cuda.get_allocator_backend())"
ON = "True pluggable\n"


@pytest.fixture
def armed(bench):
    """The environment that `gapless run` makes."""
    return {"PYTHONPATH": RUN, "GAPLESS_RUN": "1", "PYTHONWARNINGS": "ignore"}


def test_importing_torch_is_enough(bench, armed):
    done = bench.passes(SAYS, **armed)
    assert (done.out, done.err) == (ON, "")


def test_the_loader_of_torch_is_the_usual_one(bench, armed):
    program = """
        import sys, torch
        assert not any("gapless" in type(finder).__module__ for finder in sys.meta_path)
        assert type(torch.__loader__).__name__ == "SourceFileLoader" and "exec_module" not in vars(torch.__loader__)
        import importlib.util, inspect
        assert inspect.getsource(torch) and importlib.util.find_spec("torch") is torch.__spec__
    """
    bench.passes(program, **armed)


def test_a_program_without_torch_notices_nothing(bench, armed):
    done = bench.passes("import sys; print(sorted(m for m in sys.modules if m == 'ctypes' or m.startswith('torch')))", **armed)
    assert (done.out, done.err) == ("[]\n", "")


def test_without_the_word_of_gapless_run_the_folder_does_nothing(bench, armed):
    program = "import torch; torch.empty(1, device='cuda'); print(torch.cuda.get_allocator_backend())"
    assert bench.passes(program, **{**armed, "GAPLESS_RUN": None}).out == "native\n"


def test_a_module_and_child_processes_are_reached(bench, armed, tmp_path):
    (tmp_path / "job.py").write_text(SAYS + "\n")
    assert bench.start([sys.executable, "-m", "job"], folder=tmp_path, **armed).out == ON
    (tmp_path / "parent.py").write_text(
        "import multiprocessing, subprocess, sys\n"
        "def child(): import job\n"
        "if __name__ == '__main__':\n"
        "    subprocess.run([sys.executable, 'job.py'], check=True)\n"
        "    for method in ('spawn', 'fork'):\n"
        "        process = multiprocessing.get_context(method).Process(target=child)\n"
        "        process.start(); process.join(); assert process.exitcode == 0\n"
    )
    done = bench.start([sys.executable, "parent.py"], folder=tmp_path, **armed)
    assert (done.code, done.out) == (0, ON * 3), done.err


def test_torchrun_workers_are_reached(bench, armed, tmp_path):
    (tmp_path / "job.py").write_text(SAYS + "\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "job.py"]
    done = bench.start(command, folder=tmp_path, OMP_NUM_THREADS="1", **armed)
    assert (done.code, done.out) == (0, ON * 2), done.err


def test_a_sitecustomize_that_was_there_still_runs(bench, armed, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.was_there = __file__\n")
    done = bench.passes("print(was_there);" + SAYS, **{**armed, "PYTHONPATH": f"{RUN}:{tmp_path}"})
    assert done.out == f"{tmp_path / 'sitecustomize.py'}\n" + ON


def test_a_wrong_option_ends_the_program(bench, armed):
    done = bench.python("import torch; print('went on')", GAPLESS_RESERV="1GiB", **armed)
    assert (done.code, done.out) == (1, "") and "did you mean GAPLESS_RESERVE?" in done.err


def test_a_missing_library_lets_the_program_run(bench, armed):
    program = "import torch; torch.empty(1, device='cuda'); print(torch.cuda.get_allocator_backend())"
    done = bench.passes(program, **{**armed, "GAPLESS_LIBRARY": "/none.so", "PYTHONWARNINGS": "default"})
    assert done.out == "native\n" and "gapless is off" in done.err


def test_a_program_that_enables_itself_is_fine(bench, armed):
    assert bench.passes("import gapless, torch; gapless.enable();" + SAYS, **armed).out == ON


def test_the_command_arms_and_passes_everything_on(bench, command, tmp_path):
    (tmp_path / "job.py").write_text("import sys; print(sys.argv[1:])\n" + SAYS + "\nsys.exit(7)\n")
    words = [command, "run", "--stats", "--reserve", "1MiB", "--set", "slack=3", "--", sys.executable, "job.py", "--a", "b c"]
    done = bench.start(words, folder=tmp_path, PYTHONWARNINGS="ignore")
    assert (done.code, done.out) == (7, "['--a', 'b c']\n" + ON), done.err
    assert done.err.startswith("gapless: cuda:0 peak allocated ") and len(done.err.splitlines()) == 1
    if bench.double:
        words[-3:] = ["-c", "import gapless, torch; print(gapless.stats()['double.options'])"]
        assert bench.start(words, PYTHONWARNINGS="ignore").out == f"reserve={1 << 20};slack=3\n"


def test_the_command_says_what_is_wrong(bench, command):
    cases = [
        (["run", "--", "no-such-program"], {}, "no-such-program cannot be started"),
        (["run", "--reserve", "much", "--", "true"], {}, "--reserve"),
        (["run", "--set", "slack", "--", "true"], {}, "is not NAME=VALUE"),
        (["run"], {}, "<COMMAND>"),
    ]
    for words, environment, part in cases:
        done = bench.start([command, *words], **environment)
        assert done.code == 2 and part in done.err and done.out == "", done.err


def test_the_command_finds_no_package(bench, command, tmp_path):
    program = tmp_path / "gapless"
    program.write_bytes(open(command, "rb").read())
    program.chmod(0o755)
    done = bench.start([program, "run", "--", sys.executable, "-c", "1"], folder=tmp_path, PYTHONPATH=None)
    assert done.code == 2 and "not installed" in done.err and "pip install ." in done.err
    done = bench.start([program, "run", "--", sys.executable, "-c", "1"], folder=tmp_path, GAPLESS_LIBRARY=None)
    assert (done.code == 2 and "libgapless_torch.so" in done.err) or (ROOT / "python/gapless/libgapless_torch.so").exists()
