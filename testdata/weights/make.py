"""Writes the small files of this folder: weights as torch, NumPy and ONNX write them. Needs torch, numpy and onnx.

Usage: python make.py torch | unusual | numpy | unusual-numpy | onnx | unusual-onnx
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


def by_torch_unusual() -> None:
    """Tensors that a pickle describes in other ways: classes of their own, attributes, quantised, keys without text."""
    import numpy as np
    import torch

    class Named(torch.Tensor):
        pass

    # Pickles name classes by module and name.
    Named.__module__, Named.__qualname__ = "__main__", "Named"
    sys.modules["__main__"].Named = Named  # type: ignore[attr-defined]
    tagged = torch.arange(6, dtype=torch.float32)
    tagged.tag = "a note"  # type: ignore[attr-defined]
    state = {
        "named": torch.arange(12).as_subclass(Named),
        "tagged": tagged,
        "buffer": torch.nn.Buffer(torch.ones(5)),
        "quantised": torch.quantize_per_tensor(torch.ones(4, 8), 0.1, 0, torch.qint8),
        "wide": torch.ones(3, dtype=torch.complex128),
        "scales": torch.ones(7).to(torch.float8_e8m0fnu),
        "pairs": torch.zeros(2, 16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        ("a", 1): torch.ones(2),
        2.5: torch.ones(1),
        "array": np.ones(3),
    }
    torch.save(state, HERE / "unusual.pt")


def by_numpy_unusual() -> None:
    import numpy as np

    np.save(HERE / "alone.npy", np.asfortranarray(np.ones((2, 3), np.float32)))
    np.savez(
        HERE / "unusual.npz",
        swapped=np.arange(5, dtype=">i4"),
        wide=np.ones(2, dtype=np.complex128),
        objects=np.array([{}], dtype=object),
        records=np.zeros(2, dtype=[("a", "f4"), ("b", "i8")]),
        words=np.array(["a"]),
    )


def by_onnx_unusual() -> None:
    """A tensor of each type that onnx.proto knows, one of a type of its future, and a constant of a function."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    tensors = []
    for number in [*(number for number in TensorProto.DataType.values() if number), 99]:
        tensor = TensorProto(name=f"type {number}", data_type=number, dims=[4, 8])
        tensors.append(tensor)
    model = helper.make_model(helper.make_graph([], "g", [], [], tensors))
    one = numpy_helper.from_array(np.ones(50, np.float32), "of a function")
    model.functions.append(onnx.FunctionProto(name="f", domain="d", node=[helper.make_node("Constant", [], ["o"], value=one)]))
    onnx.save(model, HERE / "unusual.onnx")


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


MAKERS = {
    "torch": by_torch,
    "unusual": by_torch_unusual,
    "numpy": by_numpy,
    "unusual-numpy": by_numpy_unusual,
    "onnx": by_onnx,
    "unusual-onnx": by_onnx_unusual,
}
MAKERS[sys.argv[1]]()
