"""The prediction for one program, without a card: what it would ask of a card's allocator, and XLA's own sizes.

    python predict.py NAME FOLDER [sample]

Writes FOLDER/NAME.requests.csv (rows as MiniMalloc's: `gapless replay` reads them), FOLDER/NAME.json and
FOLDER/NAME.N.hlo.pb, the dumps.
"""

import json
import os
import runpy
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.environ.get("GAPLESS_PACKAGE", os.path.join(HERE, "../../../python"))]

from gapless._estimate.cards import card  # noqa: E402
from gapless._jax.ahead import Compiler, prepare  # noqa: E402
from gapless._jax.watch import Watch, install  # noqa: E402

name, folder = sys.argv[1:3]
sample = sys.argv[3:] == ["sample"]
started = time.monotonic()
dumps = prepare()
kind = os.environ.get("TARGET_CONFIG")
compiler = Compiler(card("h200"), 1, dumps, open(kind).read() if kind else None)
watch = Watch(compiler, 1)
remove = install(watch)
sys.argv = [os.path.join(HERE, "programs.py"), *(["--sample"] if sample else []), name]
error = None
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except Exception as problem:
    error = f"{type(problem).__name__}: {str(problem)[:500]}"
watch.look()
end = watch.tick()
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, f"{name}.requests.csv"), "w") as file:
    print("id,lower,upper,size", file=file)
    for request in watch.requests[0]:
        print(f"{request.what},{request.start},{request.end or end},{request.size}", file=file)
programs = []
for i, program in enumerate(watch.programs.values()):
    row = {key: value for key, value in vars(program).items() if key not in ("keeps", "dump")}
    programs.append(row)
    if program.dump:
        shutil.copy(program.dump, os.path.join(folder, f"{name}.{i}.hlo.pb"))
        for kind in ("buffer-assignment", "live-range"):
            twin = program.dump.replace(".hlo.pb", f"-{kind}.txt")
            if os.path.exists(twin):
                shutil.copy(twin, os.path.join(folder, f"{name}.{i}.{kind}.txt"))
with open(os.path.join(folder, f"{name}.json"), "w") as file:
    json.dump({"name": name, "seconds": time.monotonic() - started, "error": error, "programs": programs, "calls": len(watch.calls)}, file)
print(name, error or "", f"{time.monotonic() - started:.1f} s", flush=True)
shutil.rmtree(dumps, ignore_errors=True)
