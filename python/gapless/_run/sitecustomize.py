"""Python imports a module of this name at start, wherever the path has one; `gapless run` puts this folder first.

Every process below it inherits the path, so torchrun, `python -m` and child processes are all reached. It arms the hook
and then gives way to the sitecustomize that would have been imported without it. An error here must not keep the
program from starting.
"""

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


def _package() -> ModuleType:
    """The package that this folder lies in, also if the interpreter that runs has none installed."""
    folder = os.path.dirname(_HERE)
    if importlib.util.find_spec("gapless") is None:
        init = os.path.join(folder, "__init__.py")
        spec = importlib.util.spec_from_file_location("gapless", init, submodule_search_locations=[folder])
        if spec is None or spec.loader is None:
            raise ImportError(f"{init} cannot be loaded")
        module = importlib.util.module_from_spec(spec)
        sys.modules["gapless"] = module
        spec.loader.exec_module(module)
    from gapless import _hook

    return _hook


def _give_way() -> None:
    others = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("GAPLESS_RUN") == "1":
    try:
        _package().arm()
    except Exception as error:
        print(f"gapless: the program runs without it, since it cannot be armed: {error!r}", file=sys.stderr)
_give_way()
