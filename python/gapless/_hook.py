"""Enables Gapless when torch is imported. This is how `gapless run` reaches a program that does not mention Gapless.

The finder looks torch up as if it were not there, and lets the loader it found call enable() after the module was
executed. The loader stays the original object, so that tools which look at it see nothing new.
"""

import importlib.util
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional

from ._errors import GaplessError, GaplessWarning, OptionError


class _WhenTorchIsImported:
    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None) -> Optional[ModuleSpec]:
        if name != "torch":
            return None
        # The search below asks all finders, and would come back here. torch is imported only once.
        disarm()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            _call_after(spec.loader, _enable)
        return spec


def arm() -> None:
    """Makes `import torch` enable Gapless. If torch is imported already, enables it now."""
    if "torch" in sys.modules:
        _enable()
    elif not any(isinstance(finder, _WhenTorchIsImported) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WhenTorchIsImported())


def disarm() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WhenTorchIsImported)]


def _call_after(loader: Any, call: Callable[[], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        execute(module)
        call()

    loader.exec_module = exec_module


def _enable() -> None:
    """Raises for a wrong option, because the user gave it for this run. After any other failure the program runs on
    torch's own allocator."""
    from . import enable

    try:
        enable()
    except OptionError:
        raise
    except GaplessError as error:
        warnings.warn(f"gapless is off, torch's own allocator is in place: {error}", GaplessWarning, stacklevel=2)
