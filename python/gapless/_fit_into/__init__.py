"""gapless.fit_into(): a training step is recorded, planned for a budget of memory, and run by that plan."""

from typing import Any, Union


def fit_into(model: Any, budget: Union[int, str], min_size: Union[int, str] = "1MiB", wait: bool = False, time_limit: float = 3.0) -> Any:
    """Trains a model in a budget of device memory, and loses as little time as it can.

    model       the module whose forward is planned
    budget      the most bytes to allocate on the device, such as "20GiB"
    min_size    smaller tensors always stay
    wait        True: the step after the recorded one waits for its plan. False: the plan takes over when it is made
    time_limit  seconds to search for a plan

    The first steps run as they are: one to warm up, one timed, one recorded. Later steps drop saved tensors that the
    plan names, and make them again in backward. Losses and gradients are bit for bit the same. docs/fit-into.md has
    the rest.
    """
    from .api import FitInto

    return FitInto(model, budget, min_size, wait, time_limit)
