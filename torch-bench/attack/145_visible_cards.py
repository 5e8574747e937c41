"""Processes that see no card, one by its number or by its name, or set that after torch is imported: a program for the
host runs to its end, one for the card computes, and each ends with its own code, with Gapless enabled before CUDA
starts."""
import subprocess
import sys

HEAD = """
import os, sys
import torch
NATIVE = os.environ.get("GAPLESS", "1").strip().lower() in ("0", "off", "no", "false")
def enable():
    if not NATIVE:
        import gapless
        return gapless.enable(oom_dir="off")
"""
HOST = HEAD + """
enable()
x = torch.arange(1000).reshape(10, 100) @ torch.ones(100, dtype=torch.int64)
assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() == 0
try:
    torch.empty(1, device="cuda")
    sys.exit(3)
except (RuntimeError, AssertionError):
    pass
assert int(x.sum()) == 499500
"""
CARD = HEAD + """
enable()
assert torch.cuda.device_count() == 1
x = torch.arange(1 << 20, device="cuda")
assert int(x.sum()) == (1 << 19) * ((1 << 20) - 1)
assert torch.cuda.memory_allocated() >= 8 << 20
del x
torch.cuda.empty_cache()
"""
LATE = HEAD + """
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
enable()
x = torch.ones(1 << 20, device="cuda")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
y = x + x
assert float(y.sum()) == 2 << 20
"""
HIDDEN_LATE = HEAD + """
enable()
os.environ["CUDA_VISIBLE_DEVICES"] = ""
torch.zeros(3).sum()
assert not torch.cuda.is_available()
"""
from common import *

torch.cuda.init()
name = "GPU-" + str(torch.cuda.get_device_properties(0).uuid)
cases = [("none", HOST, ""), ("minus one", HOST, "-1"), ("one that is not there", HOST, "63"), ("0", CARD, "0"),
         ("its name", CARD, name), ("set late", LATE, None), ("hidden late", HIDDEN_LATE, None),
         ("0 and one that is not there", CARD, "0,63")]
problems, running = [], []
for what, program, visible in cases:
    env = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    running.append((what, subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], env=env, text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)))
for what, child in running:
    try:
        out = child.communicate(timeout=60)[0]
    except subprocess.TimeoutExpired:
        child.kill()
        out = "no end within 60 s"
    if child.returncode != 0:
        problems.append(f"{what}: code {child.returncode}, {(out.strip().splitlines() or [''])[-1][:140]}")
done(not problems, "; ".join(problems[:3]) or f"{len(cases)} processes")
