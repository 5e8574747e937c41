"""The limit on a test's GPU memory, as pytest shows it."""

import sys

TESTS = """
import pytest, torch

def use(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

@pytest.mark.gapless_limit("10MiB")
def test_below(): use(8)

@pytest.mark.gapless_limit("10MiB")
def test_above(): use(4); use(12)

@pytest.mark.gapless_limit("10MiB")
def test_below_after_one_above(): use(9)

@pytest.mark.gapless_limit(size=1 << 20, of="reserved")
def test_reserved(): use(1)

@pytest.mark.gapless_limit("10MiB")
def test_its_own_failure_counts(): use(12); assert False, "own reason"

@pytest.mark.gapless_limit("ten")
def test_wrong(): pass

def test_without(): use(100)
"""


def test_a_test_above_its_limit_fails_and_says_by_how_much(bench, tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gapless.pytest_plugin", "--strict-markers", "-rA", "test_it.py"]
    done = bench.start(words, folder=tmp_path)
    for name in ("below", "below_after_one_above", "without"):
        assert f"PASSED test_it.py::test_{name}\n" in done.out, done.out
    for name in ("above", "reserved", "its_own_failure_counts", "wrong"):
        assert f"FAILED test_it.py::test_{name} " in done.out, done.out
    assert "the test had 12.00 MiB of cuda:0 allocated at once, 2.00 MiB above its limit of 10.00 MiB" in done.out
    assert "own reason" in done.out and "'ten' is not a number of bytes, such as 60GiB" in done.out


def test_a_test_without_torch_passes(tmp_path, monkeypatch):
    import subprocess

    from conftest import ROOT

    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.gapless_limit('1B')\ndef test_nothing(): pass\n")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "gapless.pytest_plugin", "test_it.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout
