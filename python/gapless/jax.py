"""JAX without a card: will a step fit, and which settings make it fit?

    import gapless.jax
    print(gapless.jax.estimate(step, params, opt_state, batch, device="h200"))

Arguments are arrays or `jax.ShapeDtypeStruct`s; XLA compiles the step for the card and nothing runs. `gapless estimate
--jax train.py` does the same for every compiled function of a script, and `gapless report` reads XLA's dumps.
"""

from typing import Any

from ._jax.answer import Device as Device
from ._jax.answer import JaxEstimate as JaxEstimate
from ._jax.choose import Choice as Choice
from ._jax.choose import Choices as Choices

__all__ = ["Choice", "Choices", "Device", "JaxEstimate", "choose", "estimate", "remat"]


def estimate(function: Any, *shapes: Any, device: str = "h200", devices: int = 1, **keywords: Any) -> JaxEstimate:
    """The memory of one call of `function` on `device`: a function, or what `jax.jit` made of it with its donated
    arguments and shardings. For a mesh give the number of its `devices`."""
    from ._jax.estimate import of_function

    return of_function(function, shapes, keywords, device, devices)


def choose(make: Any, *, device: str = "h200", budget: "int | str | None" = None, devices: int = 1, **settings: Any) -> Choices:
    """The settings with which a step fits in `budget` (the share of the card that XLA takes, if none is given).

    `make(**settings)` gives the function and its arguments. Each setting is a list: of words, which are all compiled,
    or of numbers, of which the largest that fits is looked for.

        gapless.jax.choose(lambda batch, remat: (step(remat), params, tokens(batch)), batch=range(1, 65),
                           remat=["none", "dots", "full"], budget="40GiB")
    """
    from ._estimate.cards import card
    from ._jax.choose import choose as search
    from ._jax.estimate import prepared, share
    from ._options import positive_bytes

    kind = card(device)
    room = int(kind.memory * share()) if budget is None else positive_bytes(budget)
    return search(make, kind, room, devices, prepared(devices), settings)


def remat(name: str, function: Any) -> Any:
    """`function` with a policy of `jax.checkpoint`, by name: `none` keeps everything, `dots` and `dots_no_batch` keep
    the products (of weights alone), `full` keeps nothing."""
    import jax

    from ._errors import GaplessError

    policies = {
        "none": None,
        "dots": jax.checkpoint_policies.dots_saveable,
        "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        "full": jax.checkpoint_policies.nothing_saveable,
    }
    if name not in policies:
        raise GaplessError(f"no policy is called {name!r}: known are {', '.join(policies)}")
    return function if name == "none" else jax.checkpoint(function, policy=policies[name])
