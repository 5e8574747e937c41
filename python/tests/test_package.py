"""The package as such: its version, its manners, the statistics' shape, the line at exit."""

import re
import subprocess
import sys

import pytest

import gapless
from conftest import PACKAGE, ROOT
from gapless import _paths
from gapless._stats import line
from gapless._tools import flat, nested


def test_one_version_everywhere():
    in_cargo = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    # The wheel takes cargo's version: pyproject.toml has none of its own.
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text()
    assert gapless.version() == gapless.__version__ == in_cargo


def test_importing_it_does_nothing():
    program = (
        "import sys; before = set(sys.modules), list(sys.meta_path); import gapless; "
        "assert 'torch' not in sys.modules and 'ctypes.util' not in sys.modules; "
        "assert sys.meta_path == before[1]; assert not gapless.enabled(); print(gapless.disable_reason())"
    )
    # A variable that enable() would refuse shows that the import does not read it.
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT / "python"), "GAPLESS_NONSENSE": "1"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "gapless.enable() was not called\n", "")


def test_the_header_of_a_source_tree_is_the_projects():
    assert gapless.include_dir() == str(ROOT / "include")


def test_a_missing_header_is_named(monkeypatch):
    monkeypatch.setattr(_paths, "HEADER", "another.h")
    with pytest.raises(gapless.GaplessError, match=r"include/another.h is missing: .* install gapless again"):
        gapless.include_dir()


def test_every_module_says_what_it_is_for():
    for module in PACKAGE.rglob("*.py"):
        assert module.read_text().startswith('"""'), module


def test_statistics_have_all_of_torchs_keys_and_keep_ours():
    known = flat(nested({"allocated_bytes.all.peak": 7, "gapless.driver_ns": 9, "num_ooms": 1}))
    assert known["allocated_bytes.all.peak"] == 7 and known["gapless.driver_ns"] == 9 and known["num_ooms"] == 1
    for key in ("requested_bytes.all.peak", "inactive_split_bytes.small_pool.freed", "segment.all.peak", "oversize_segments.peak"):
        assert known[key] == 0


def test_nested_statistics_are_taken_as_they_are():
    tree = {"allocated_bytes": {"all": {"current": 3}}}
    assert flat(nested(flat(tree)))["allocated_bytes.all.current"] == 3


def test_the_line_at_exit():
    stats = {"allocated_bytes.all.peak": 3 << 29, "reserved_bytes.all.peak": 2 << 30, "gapless.pages_harvested": 4, "gapless.driver_ns": 15_000_000}
    assert line({0: stats}) == (
        "gapless: cuda:0 peak allocated 1.50 GiB, peak reserved 2.00 GiB, fragmentation 25.0 %, 4 pages harvested, 0.015 s in the driver"
    )
    assert line({}) == "gapless: the GPU was not used"
