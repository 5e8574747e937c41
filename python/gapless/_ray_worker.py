"""Prepares a Ray worker before the program's own code runs: it sees its GPUs and is the tenant of its bytes."""

import os
from collections.abc import Sequence

from ._hook import arm


def enter(tenant: str, gpus: Sequence[int], count: int) -> None:
    """Makes this process the tenant `tenant` with `count` bytes of each of these GPUs."""
    shown = ",".join(str(gpu) for gpu in gpus)
    # The numbers are those of NVIDIA's tools, and CUDA's own order differs.
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    os.environ["CUDA_VISIBLE_DEVICES"] = shown
    os.environ["NVIDIA_VISIBLE_DEVICES"] = shown
    os.environ["GAPLESS_TENANT"] = f"{tenant}:{count}"
    arm()
