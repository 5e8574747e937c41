"""Torch's hooks over HIP's runtime: stock torch for CUDA, told that it is torch for ROCm, with the allocator's device
on the stand-in for libamdhip64.so. Both meet the same card. Nothing of this was ever run on a card of AMD."""

import subprocess

import pytest

from conftest import ROOT

PROGRAMS = ROOT / "python" / "tests" / "programs"

BEGIN = """
import ctypes, warnings
import torch
torch.version.hip = "7.0.0"
import gapless
hip = ctypes.CDLL("libamdhip64.so")
"""


@pytest.fixture
def rocm(real):
    return real


def test_requests_of_torch_come_from_hip(rocm):
    done = rocm.passes(
        BEGIN
        + """
assert gapless.enable(limit="512MiB")
torch.cuda.init()
assert hip.hip_calls_on(0) == 0, "the trial was in a child"
kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (1000, 3 << 20, 40 << 20)]
assert hip.hip_calls_on(0) > 0
assert gapless.stats()["allocated_bytes.all.current"] == 1024 + (43 << 20)

# Streams: what another stream uses is not handed out again before its work is done.
side = torch.cuda.Stream()
block = torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
card = ctypes.CDLL("libcuda.so.1")
card.card_hold(1)
block.record_stream(side)
at = block.data_ptr()
del block
assert torch.empty(8 << 20, dtype=torch.uint8, device="cuda").data_ptr() != at
card.card_hold(0)

# Windows: no hole is large enough, and their pages together are.
del kept
torch.cuda.empty_cache()
parts = [torch.empty(30 << 20, dtype=torch.uint8, device="cuda") for _ in range(16)]
del parts[::2]
large = torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
assert gapless.stats()["reserved_bytes.all.current"] <= 512 << 20
try:
    torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    print("out of memory")

# A graph's pool.
graph = torch.cuda.CUDAGraph()
del parts, large
with torch.cuda.graph(graph):
    inside = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
graph.replay()
del inside, graph
torch.cuda.empty_cache()
assert gapless.stats()["allocated_bytes.all.current"] == 0
""",
        GAPLESS_OVERLAY="0",
    )
    assert done.lines() == ["out of memory"]


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("STANDIN_HIP_ALIAS", "0", "mapping a page a second time failed"),
        ("STANDIN_HIP_VMM", "0", "no virtual memory management"),
        ("GAPLESS_DRIVER", "rocm", "use cuda or hip"),
        ("GAPLESS_DRIVER", "cuda", "does not use HIP"),
    ],
)
def test_a_card_that_cannot_keeps_torchs_own_allocator(rocm, variable, value, reason):
    done = rocm.passes(
        BEGIN
        + """
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    assert not gapless.enable()
assert not gapless.enabled()
print(gapless.disable_reason())
assert any(gapless.disable_reason() in str(each.message) for each in said)
kept = torch.empty(1000, device="cuda")
assert torch.cuda.memory_allocated() == 4096
assert hip.hip_calls_on(0) == 0
""",
        **{variable: value},
    )
    assert reason in done.out, done.out


def test_the_c_interface_runs_on_hip(rocm, tmp_path):
    library = rocm.library
    folder = library.rpartition("/")[0]
    program = tmp_path / "memory"
    words = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", str(PROGRAMS / "memory.c"), "-I", str(ROOT / "include")]
    words += ["-o", str(program), library, f"-Wl,-rpath,{folder}", str(rocm.standin / "libcuda.so.1")]
    subprocess.run(words, check=True)
    done = rocm.start([program], GAPLESS_DRIVER="hip", LD_PRELOAD=None)
    assert done.code == 0, done.out + done.err
    done = rocm.start([program], GAPLESS_DRIVER="opencl", LD_PRELOAD=None)
    assert done.code == 1 and "use cuda or hip" in done.err
