"""A C++ extension that talks to torch's allocator without Python between. Needs a compiler and CUDA's headers; the
stand-in's few declarations are enough."""
import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile

import torch

from common import skip

STANDIN = pathlib.Path(__file__).resolve().parents[1] / "standin" / "include"


def headers():
    """Folders that may have CUDA's headers, those of a whole toolkit first."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [pathlib.Path(home) / "include" for home in homes if home]
    return [folder for folder in folders if (folder / "crt" / "host_config.h").exists()] + [STANDIN]


def build(source):
    """The library of a C++ source. If it cannot be built, the program ends as one that does not apply."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        skip("there is no C++ compiler")
    home = pathlib.Path(torch.__file__).resolve().parent
    folder = pathlib.Path(tempfile.mkdtemp(prefix="extension-"))
    (folder / "extension.cpp").write_text(source)
    version = int(float(torch.version.cuda) * 10 + 0.5) * 100
    flags = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE", f"-I{home / 'include'}"]
    said = ""
    for cuda in headers():
        # The toolkit has its own version; the stand-in's declarations ask for one.
        defines = [f"-DCUDART_VERSION={13000 if version >= 13000 else 12080}"] if cuda == STANDIN else []
        command = [compiler, *flags, *defines, f"-I{cuda}", "-o", "extension.so", "extension.cpp", f"-L{home / 'lib'}", "-lc10", "-lc10_cuda"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode == 0:
            library = ctypes.CDLL(str(folder / "extension.so"))
            shutil.rmtree(folder)
            return library
        said = done.stderr
    skip(f"the extension cannot be built: {said[-300:]}")
