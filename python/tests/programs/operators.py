"""Each operator of torch's own list, on whole numbers and truths of its own examples: as a function, into a part of a
tensor, and in place. What it gives on the card has to be what it gives on the CPU. Estimated by test_estimate_known.py.

    operators.py [EVERY]        one of so many operators (1: all of them)
"""

import itertools
import sys
import types
import unittest
import warnings

# The list is a part of torch's tests, which import this package for other purposes.
sys.modules["expecttest"] = types.ModuleType("expecttest")
sys.modules["expecttest"].TestCase = unittest.TestCase

import torch  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._pytree import tree_leaves, tree_map  # noqa: E402

warnings.filterwarnings("ignore")
# Random numbers, and memory that was not written to.
RANDOM = ("rand", "bernoulli", "multinomial", "normal", "uniform", "cauchy", "exponential", "geometric", "dropout", "empty")
ran, wrong = 0, {}


def moved(leaf):
    if isinstance(leaf, torch.Tensor):
        return leaf.cuda()
    return "cuda" if isinstance(leaf, torch.device) or leaf == "cpu" else leaf


def difference(want, found):
    """How results differ; floats are not compared."""
    want, found = tree_leaves(want), tree_leaves(found)
    if len(want) != len(found):
        return "count"
    for one, other in zip(want, found):
        if isinstance(one, torch.Tensor) and one.shape != other.shape:
            return f"{tuple(one.shape)} became {tuple(other.shape)}"
        if isinstance(one, torch.Tensor) and not one.is_floating_point() and not one.is_complex() and not torch.equal(one, other.cpu()):
            return "values"
        if isinstance(one, (bool, int)) and one != other:
            return f"{one} became {other}"
    return None


def check(name, want, get, *given):
    global ran
    ran += 1
    try:
        found = difference(want, get(*given))
    except NotImplementedError:
        # torch has no kernel of it for CUDA: the same on a GPU.
        found = None
    except Exception as error:
        found = f"{type(error).__name__}: {str(error)[:100]}"
    if found:
        wrong.setdefault(name, found)


def plain(op, args, kwargs):
    return op.op(*args, **kwargs)


def part_of(shape, dtype, count):
    """A tensor that is a part of a larger one, anew each time."""
    whole = torch.zeros(count + 3, dtype=dtype, device="cuda")
    return lambda: whole[3:].view(shape)


def into(op, want, args, kwargs):
    part = part_of(want.shape, want.dtype, want.numel())
    op.op(*args, **kwargs, out=part())
    return part()


def in_place(op, want, args, kwargs):
    part = part_of(want.shape, want.dtype, want.numel())
    part().copy_(args[0])
    op.inplace_variant(part(), *args[1:], **kwargs)
    return part()


# Examples that differ on a card: the memory around a view does not move with it, and torch wants the indices on the
# host.
HOST = {("as_strided", "partial_views"), ("tensor_split", "")}

torch.manual_seed(0)
for op in op_db[:: int(sys.argv[1]) if len(sys.argv) > 1 else 1]:
    if (op.name, op.variant_test_name) in HOST:
        continue
    if any(word in op.name for word in RANDOM) or op.name.startswith(("_refs", "linalg", "sparse", "torch_")):
        continue
    for dtype in (torch.int64, torch.bool):
        if dtype not in op.supported_dtypes("cuda") or dtype not in op.supported_dtypes("cpu"):
            continue
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), 0, 3 if dtype == torch.int64 else 1, 2))
        except Exception:
            continue
        for sample in samples:
            words = ([sample.input, *sample.args], sample.kwargs)
            try:
                want = op.op(*words[0], **words[1])
            except Exception:
                continue
            args, kwargs = tree_map(moved, words)
            name = f"{op.name} {op.variant_test_name} {dtype}"
            check(name, want, plain, op, args, kwargs)
            whole = isinstance(want, torch.Tensor) and want.numel() > 0 and sample is samples[-1]
            if whole and op.supports_out and "out" not in kwargs:
                check(f"{name} out=", want, into, op, want, args, kwargs)
            if whole and op.inplace_variant is not None and isinstance(args[0], torch.Tensor) and (want.dtype, want.shape) == (args[0].dtype, args[0].shape):
                check(f"{name} in place", want, in_place, op, want, args, kwargs)
print("RAN", ran)
for name, why in wrong.items():
    print("WRONG", name, why)
