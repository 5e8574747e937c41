"""The time of an operator on a card that is not there: its operations at the card's speed, or its bytes at the speed of
the memory, whichever takes longer. Shares of the peaks are those at which a Llama 3 8B ran on an H200.
"""

from typing import Any

import torch

from .leaves import tensors

# Dense operations a clock and multiprocessor, in 16 bits and in 32, by compute capability.
_HALF = {(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 512, (8, 9): 512, (9, 0): 4096, (10, 0): 8192}
_SINGLE = {(7, 0): 128, (7, 5): 128, (8, 0): 128}
_COMPUTE, _MEMORY = 0.55, 0.7
# Microseconds of the shortest kernel.
_KERNEL_US = 2.0


class Roofline:
    """Microseconds of operators on one device."""

    def __init__(self, device: Any) -> None:
        from torch.utils.flop_counter import flop_registry

        self._operations = flop_registry
        found = torch.cuda.get_device_properties(device)
        kind = (found.major, found.minor)
        clocks = found.multi_processor_count * found.clock_rate * 1e3 * _COMPUTE
        self._half, self._single = clocks * _HALF.get(kind, 1024), clocks * _SINGLE.get(kind, 256)
        # Two transfers a clock.
        self._memory = found.memory_clock_rate * 1e3 * found.memory_bus_width / 8 * 2 * _MEMORY

    def microseconds(self, func: Any, args: Any, kwargs: Any, out: Any) -> float:
        given = [*tensors((args, kwargs)), *tensors(out)]
        moved = sum(tensor.numel() * tensor.element_size() for tensor in given)
        counter = self._operations.get(func._overloadpacket)
        operations = counter(*args, **kwargs, out_val=out) if counter is not None else 0
        speed = self._half if any(tensor.element_size() == 2 for tensor in given) else self._single
        took: float = max(_KERNEL_US, 1e6 * operations / speed, 1e6 * moved / self._memory)
        return took
