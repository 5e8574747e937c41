"""Gapless' own functions may be called at any line of each other: finalizers and signal handlers run at any moment, in
the thread that is inside already."""

import ast

import pytest

from conftest import PACKAGE

WITHIN = """
import faulthandler, itertools, os, sys
faulthandler.dump_traceback_later(100, exit=True)
import torch, gapless
assert gapless.enable(limit="1GiB", oom_dir="off")
torch.zeros(1, device="cuda")
MIB = 1 << 20
scope, place = gapless.budget("512MiB", tag="inner"), gapless.region("inner")
cache = gapless.elastic((64, MIB), torch.uint8, page="2MiB")
for name in ("one", "two"):
    with gapless.region(name):
        globals()[name] = torch.ones(3 * MIB, dtype=torch.uint8, device="cuda")


def budgets():
    with scope:
        torch.empty(1000, device="cuda")

def regions():
    with place:
        torch.empty(1000, device="cuda")

def handlers():
    gapless.on_pressure(lambda pressure: 0).remove()

def elastic():
    cache.resize((cache.size + 7) % 60)
    gapless.elastic((4, MIB), torch.uint8, page="4MiB").grow(1)

def moves(name):
    gapless.sleep(name)
    gapless.wake(name)

def offload():
    with gapless.offload(min_size="1KiB"):
        (torch.ones(4000, device="cuda", requires_grad=True) * 2).exp()

def questions():
    gapless.enable()
    gapless.stats()
    gapless.regions()

within = [budgets, regions, handlers, elastic, lambda: moves("two"), offload, questions]
outer = [budgets, regions, handlers, elastic, lambda: moves("one"), offload, questions]
for function in within + outer:
    function()
calls, here = itertools.count(), [False]
folder = os.path.dirname(gapless.__file__)


def trace(frame, event, argument):
    if not frame.f_code.co_filename.startswith(folder):
        return None
    place = (frame.f_code.co_filename, frame.f_lineno)
    if event == "line" and not here[0] and place not in seen:
        # Once at each line: work that starts again after an entry has to come to an end.
        seen.add(place)
        here[0] = True
        try:
            within[next(calls) % len(within)]()
        except gapless.GaplessError:
            # One that is moved just now.
            pass
        finally:
            here[0] = False
    return trace


# Each of the inner ones comes at each line in its turn.
for shift in range(len(within)):
    for function in outer:
        calls, seen = itertools.count(shift), set()
        sys.settrace(trace)
        try:
            function()
        except gapless.GaplessError:
            pass
        finally:
            sys.settrace(None)
for name in ("one", "two"):
    if gapless.is_asleep(globals()[name]):
        gapless.wake(name)
assert not gapless.stats().get("gapless.budgets.inner.live"), gapless.stats()
probe = torch.ones(MIB, dtype=torch.uint8, device="cuda")
for name in ("one", "two", "inner"):
    gapless.sleep(name)
assert not gapless.is_asleep(probe), "a scope stayed open"
probe + 1
try:
    one + 1
    raise SystemExit("a sleeping tensor was used")
except gapless.AsleepError:
    pass
for name in ("one", "two", "inner"):
    gapless.wake(name)
one + two
assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0, "a guard stayed behind"
print("whole")
"""


def test_functions_may_be_called_at_any_line_of_each_other(bench):
    if bench.double:
        pytest.skip("the double has no budgets and regions")
    assert bench.passes(WITHIN, GAPLESS_OOM_DIR="off").lines()[-1] == "whole"


def test_no_function_of_the_package_waits_for_itself():
    """A lock that a thread cannot take twice makes a finalizer, or a signal handler, wait for its own thread."""
    found = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr == "Lock" and getattr(node.func.value, "id", "") == "threading":
                found.add(file.name)
    assert not found, found
