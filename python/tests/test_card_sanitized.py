"""The simulated card, in C, under the address sanitizer and that of undefined behaviour, with stock torch on it."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import torch
x = torch.randn(64, 64, device="cuda")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(x).square().mean().backward()
    optimizer.step()
torch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 16, 16, device="cuda")).sum().backward()
torch.nn.LSTM(8, 8).cuda()(torch.randn(4, 2, 8, device="cuda"))[0].sum().backward()
torch.fft.fft(torch.linalg.inv(x))
torch.bmm(x.bfloat16().view(4, 16, 64), x.bfloat16().view(4, 64, 16))
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.empty(1 << 20, device="cuda").record_stream(torch.cuda.current_stream())
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x += 1
graph.replay()
x.cpu()
print("held", torch.cuda.memory_allocated() > 0)
"""


def test_a_training_step_reaches_no_wrong_byte_of_the_card(real, tmp_path):
    """`real` says that torch is there; the program runs on the card alone, built here with the sanitizers."""
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
    if not os.path.isabs(runtime):
        pytest.skip("this compiler has no libasan.so")
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nexec gcc -g -fsanitize=address,undefined -fno-sanitize-recover=all "$@"\n')
    compiler.chmod(0o755)
    card = tmp_path / "card"
    subprocess.run([sys.executable, str(ROOT / "card/build.py"), str(card)], env={**os.environ, "CC": str(compiler)}, check=True)
    # The sanitizer's dlopen does not look into the folders that torch's own libraries name.
    folders = [card, *Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/lib"), Path(sysconfig.get_paths()["purelib"], "torch/lib")]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("GAPLESS_", "PYTEST_"))},
        "LD_LIBRARY_PATH": ":".join(map(str, folders)),
        "LD_PRELOAD": ":".join([os.path.realpath(runtime), str(card / "libcuda.so.1"), str(card / "libgapless-card.so")]),
        # torch and Python end with memory in use.
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0",
        "GAPLESS_CARD": str(ROOT / "python/gapless/cards/h200.card"),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "held True\n"), done.stderr[-4000:]
