"""Hooks of accelerate and diffusers that move weights themselves: they are taken off, since two masters of one model's
weights would work against each other."""

import sys
from typing import Any


def remove(models: list[tuple[str, Any]]) -> list[str]:
    """Takes off what accelerate's dispatch_model and cpu_offload, and diffusers' offloading, have put on. Returns the
    names of the models that had such hooks. Weights that the hooks kept elsewhere come back."""
    found = []
    for label, model in models:
        has_any = False
        for module in model.modules():
            if hasattr(module, "_hf_hook"):
                has_any = True
            registry = getattr(module, "_diffusers_hook", None)
            if registry is not None and hasattr(registry, "remove_hook"):
                for name in [name for name in getattr(registry, "hooks", {}) if "offload" in name]:
                    has_any = True
                    registry.remove_hook(name, recurse=False)
        if has_any:
            hooks: Any = sys.modules.get("accelerate.hooks")
            if hooks is not None:
                hooks.remove_hook_from_module(model, recurse=True)
            if getattr(model, "hf_device_map", None) is not None:
                del model.hf_device_map
            found.append(label or type(model).__name__)
    return found
