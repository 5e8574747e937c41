"""Settings that a program gives torch by its function, before CUDA starts and later: a fraction of the card holds if it
comes before the start, with or without one in the environment, torch shows the settings of the last call, and settings
that torch refuses change nothing. Children try each, and say what they saw."""
import json
import subprocess

from common import *

CHILD = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from common import NATIVE
settings = json.loads(sys.argv[1])
if not NATIVE:
    import gapless
    gapless.enable(oom_dir="off")
def set_all(text):
    try:
        torch.cuda.memory._set_allocator_settings(text)
        return "taken"
    except Exception as error:
        return type(error).__name__
seen = [set_all(text) for text in settings["before"]]
x = torch.empty(1000, device="cuda")
seen.append(round(torch.cuda.get_per_process_memory_fraction(), 4))
total = torch.cuda.mem_get_info()[1]
for share in (0.07, 0.2):
    try:
        y = torch.empty(int(share * total), dtype=torch.uint8, device="cuda")
        seen.append("served")
    except torch.OutOfMemoryError:
        seen.append("refused")
    y = None
seen += [set_all(text) for text in settings["later"]]
seen.append(round(torch.cuda.get_per_process_memory_fraction(), 4))
shown = torch.cuda.memory._snapshot()["allocator_settings"]
said = shown["PYTORCH_CUDA_ALLOC_CONF"]
# On torch 2.14 and newer Gapless says there that its segments are expandable.
added = "expandable_segments:True"
if not NATIVE and said.endswith(added):
    said = said[: -len(added)].rstrip(",")
seen += [said, shown["pinned_use_cuda_host_register"], shown["pinned_num_register_threads"]]
seen.append(torch.empty(5000, pin_memory=True).is_pinned())
print("SEEN", json.dumps(seen))
"""

PINNED = "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"
HALF, FRACTION = "max_split_size_mb:64", "per_process_memory_fraction:0.1"
CASES = [
    ("", [FRACTION], [], ["taken", 0.1, "served", "refused", 0.1, FRACTION, False, 1, True]),
    (FRACTION, ["nonsense:1", HALF], [], ["ValueError", "taken", 0.1, "served", "refused", 0.1, HALF, False, 1, True]),
    ("", [], [FRACTION, PINNED, HALF], [1.0, "served", "served", "taken", "taken", "taken", 1.0, HALF, True, 4, True]),
    ("per_process_memory_fraction:0.05", [PINNED, FRACTION], [], ["taken", "taken", 0.1, "served", "refused", 0.1, FRACTION, True, 4, True]),
]
problems, children = [], []
here = os.path.dirname(os.path.abspath(__file__))
for environment, before, later, wanted in CASES:
    variables = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": environment}
    variables["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", CHILD, json.dumps({"before": before, "later": later})]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children.append(subprocess.Popen(command, env=variables, **pipes))
for (environment, before, later, wanted), child in zip(CASES, children):
    output, errors = child.communicate()
    lines = [line for line in output.splitlines() if line.startswith("SEEN ")]
    seen = json.loads(lines[-1][5:]) if lines else [errors[-300:]]
    if seen != wanted or child.returncode:
        problems.append(f"{environment!r}, {before}, {later}: {seen}, not {wanted}")
done(not problems, f"{len(CASES)} ways to set them, {len(problems)} problems: {problems[:2]}")
