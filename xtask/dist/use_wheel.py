"""Uses an installed wheel: `python use_wheel.py ENVIRONMENT VERSION`, in an environment that holds nothing else."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import gapless

environment, version = sys.argv[1:]
package = os.path.dirname(os.path.abspath(gapless.__file__))
assert package.startswith(environment), package
assert gapless.version() == version == importlib.metadata.version("gapless")
assert os.path.isfile(os.path.join(package, "py.typed"))
assert importlib.util.find_spec("torch") is None, "the environment is empty"

# The packer: the package finds the program that came with it.
buffers = [{"id": "a", "lower": 0, "upper": 2, "size": 4}, {"id": "b", "lower": 2, "upper": 4, "size": 4}, {"id": "c", "lower": 1, "upper": 3, "size": 4}]
answer = gapless.plan(buffers)
assert answer["peak"] == 8 and answer["proven_optimal"], answer
offsets = {buffer["id"]: buffer["offset"] for buffer in answer["buffers"]}
assert offsets["a"] != offsets["c"] != offsets["b"], offsets

# The library loads and has all that this version of the package calls.
from gapless import _library  # noqa: E402

library = _library.Library(_library.path())
assert library.file.startswith(environment)
missing = [name for name in _library._OPTIONAL if not library.has(name)]
# No build has this one yet: snapshots are torch's own.
assert missing == ["gapless_snapshot"], missing
assert library.address("gapless_alloc") != 0

# The library of weights loads; without torch, a call says what is missing.
from gapless import weights  # noqa: E402
from gapless.weights import _native  # noqa: E402

assert _native.path().startswith(environment)
try:
    _native.Catalogue("/nowhere.safetensors")
except weights.ReadError as error:
    assert "/nowhere.safetensors" in str(error), error
else:
    raise AssertionError("a file that is not there was opened")

# A C program builds with what the package brings, and runs; where there is no GPU, it is told so in words.
assert gapless.include_dir().startswith(environment) and gapless.library_dir().startswith(environment)
program = """
#include <gapless.h>
#include <stdio.h>
int main(void) {
    if (gapless_mem_abi() != GAPLESS_ABI) return 1;
    void *memory = gapless_mem_alloc(1000, 0, NULL);
    if (memory) return gapless_mem_free(memory);
    if (gapless_mem_last_code() != GAPLESS_UNAVAILABLE) return 2;
    return printf("%s", gapless_last_error()) < 10;
}
"""
folder = gapless.library_dir()
words = ["cc", "-xc", "-Wall", "-Wextra", "-Werror", "-", "-I", gapless.include_dir(), "-L", folder, "-lgapless_torch", f"-Wl,-rpath,{folder}"]
subprocess.run([*words, "-o", "program"], input=program, text=True, check=True)
subprocess.run(["./program"], check=True)

# A mistake is named before torch is looked for; where there is no torch, that is named.
for options, text in (({"resrve": "1GiB"}, "did you mean reserve?"), ({}, "torch cannot be imported")):
    try:
        gapless.enable(**options)
    except gapless.GaplessError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"enable({options}) went through")

# pytest finds the plugin by its entry point.
assert [point.value for point in importlib.metadata.distribution("gapless").entry_points if point.group == "pytest11"] == ["gapless.pytest_plugin"]
print("the installed package works")
