"""The arithmetic of a traced function, counted from its jaxpr: what a policy of recomputation costs.

XLA gives no count for a card that is not there, and before compilation it counts the body of a loop once. Here a scan
counts as often as it runs. A loop whose number of turns only the run knows counts once, and of branches the most
expensive one counts.
"""

import math
from collections.abc import Iterator
from typing import Any

# Moves values, or only names them: no arithmetic.
_FREE = frozenset(
    "broadcast_in_dim concatenate convert_element_type copy copy_p dynamic_slice dynamic_update_slice gather iota name optimization_barrier pad reshape rev "
    "select_n sharding_constraint slice squeeze stop_gradient transpose".split()
)


def operations(jaxpr: Any) -> float:
    """Operations of one call over all devices: two for each step of a product, one for each element of all else."""
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return sum(_of(equation) for equation in jaxpr.eqns)


def _of(equation: Any) -> float:
    name, params = equation.primitive.name, equation.params
    if name == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        left = equation.invars[0].aval.shape
        return 2.0 * _elements(equation) * int(math.prod(left[axis] for axis in contracted))
    if name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        return 2.0 * _elements(equation) * int(math.prod(kernel)) / int(kernel[params["dimension_numbers"].rhs_spec[0]])
    inner = [operations(part) for part in _parts(params)]
    if inner:
        if name == "cond":
            return max(inner)
        if name == "shard_map":
            # Its shapes are those of one device.
            return sum(inner) * int(params["mesh"].size)
        return sum(inner) * int(params["length"] if name == "scan" else 1)
    return 0.0 if name in _FREE else float(_elements(equation))


def _parts(params: "dict[str, Any]") -> "Iterator[Any]":
    """The jaxprs among an equation's parameters."""
    for value in params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if hasattr(getattr(part, "jaxpr", part), "eqns"):
                yield part


def _elements(equation: Any) -> int:
    return sum(math.prod(out.aval.shape) for out in equation.outvars if hasattr(out.aval, "shape"))
