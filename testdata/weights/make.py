"""Writes the small files of this folder: weights as torch, NumPy and ONNX write them. Needs torch, numpy and onnx.

Usage: python make.py torch | numpy | onnx
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent


def by_torch() -> None:
    import torch

    torch.manual_seed(0)
    linear = torch.nn.Linear(33, 17)
    shared = torch.randn(40, 50, dtype=torch.bfloat16)
    state = {
        "linear.weight": linear.weight,
        "linear.bias": linear.bias.detach(),
        "embed": shared,
        "head": shared,
        "view": shared[10:20],
        "turned": shared.t(),
        "half": torch.randn(9).half(),
        "ids": torch.arange(12),
        "nested": {"step": 3, "moments": [torch.zeros(3), torch.ones(2, 2, dtype=torch.float64)]},
    }
    torch.save(state, HERE / "tiny.pt")


def by_numpy() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((6, 7), dtype=np.float32), "b": np.arange(5, dtype=np.int8), "s": np.float64(2)}
    np.savez(HERE / "tiny.npz", **arrays)
    np.savez_compressed(HERE / "tiny_deflated.npz", **arrays)


def by_onnx() -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.standard_normal((8, 4), dtype=np.float32), "weight")
    listed = helper.make_tensor("listed", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    numbers = helper.make_tensor("numbers", TensorProto.INT64, [2], [5, 6])
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones((2, 2), np.float16), "one"))
    product = helper.make_node("MatMul", ["x", "weight"], ["y"])
    graph = helper.make_graph(
        [constant, product],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
        [weight, listed, numbers],
    )
    onnx.save(helper.make_model(graph), HERE / "tiny.onnx")


{"torch": by_torch, "numpy": by_numpy, "onnx": by_onnx}[sys.argv[1]]()
