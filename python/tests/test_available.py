"""The memory that a process can still get, over the stand-in card: a request of that size is served, and one of a
little more is not."""

import pytest

TRY = """
import ctypes, torch, gapless
MIB = 1 << 20
def serves(size):
    try:
        torch.empty(size, dtype=torch.uint8, device="cuda")
        return True
    except torch.OutOfMemoryError:
        return False
"""


@pytest.mark.parametrize(
    "enable, more",
    [
        ("", ""),
        ("limit=500 * MIB", ""),
        ("process_limit=900 * MIB", ""),
        ("tenant='a:30%'", ""),
        ("", "scope = gapless.budget(200 * MIB); scope.__enter__()"),
        (
            "process_limit=900 * MIB",
            "e = gapless.elastic((64, 4 * MIB), torch.uint8, page='4MiB', pool=gapless.elastic_pool(page='4MiB', ahead=0)); e.grow(40)",
        ),
    ],
)
def test_what_is_available_can_be_had_and_no_more(real, tmp_path, enable, more):
    lines = real.passes(
        TRY
        + f"""
gapless.enable({enable})
held = [torch.empty(size * MIB, dtype=torch.uint8, device="cuda") for size in (30, 90, 3)]
{more}
del held[1]
free = gapless.available()
print(free // MIB > 50, serves((free // MIB - 4) * MIB), serves(free + 8 * MIB))
""",
        GAPLESS_RUN_DIR=str(tmp_path),
    ).lines()
    assert lines == ["True True False"]


def test_it_needs_no_allocator_of_ours(real):
    assert real.passes(TRY + "print(gapless.available() > 1000 * MIB)").lines() == ["True"]
