"""Makes the ONNX models of this folder. Needs the package onnx (made with 1.23.2); shapes are inferred by it."""

import pathlib

import onnx
from onnx import TensorProto, helper

HERE = pathlib.Path(__file__).parent


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name, shape):
    count = 1
    for dim in shape:
        count *= dim
    return helper.make_tensor(name, TensorProto.FLOAT, shape, bytes(4 * count), raw=True)


def save(file, graph, infer=True):
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    if infer:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    (HERE / file).write_bytes(model.SerializeToString(deterministic=True))


def mlp():
    """Two layers over a batch without a size; the weights are initializers."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h1"], name="layer1"),
        helper.make_node("Relu", ["h1"], ["a1"], name="relu"),
        helper.make_node("Gemm", ["a1", "w2", "b2"], ["logits"], name="layer2"),
        helper.make_node("Softmax", ["logits"], ["y"], name="softmax"),
    ]
    weights = [weight("w1", [6, 8]), weight("b1", [8]), weight("w2", [8, 3]), weight("b2", [3])]
    return helper.make_graph(nodes, "mlp", [value("x", ["batch", 6])], [value("y", ["batch", 3])], weights)


def residual():
    """A block whose input is read again by the last addition; an optional input and an optional output are left out,
    a constant is a node, and the element types differ."""
    nodes = [
        helper.make_node("Conv", ["x", "k1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Constant", [], ["low"], value=helper.make_tensor("low", TensorProto.FLOAT, [], [0.0])),
        helper.make_node("Clip", ["c1", "low", ""], ["r1"], name="clip"),
        helper.make_node("Conv", ["r1", "k2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Dropout", ["c2"], ["d", ""], name="dropout"),
        helper.make_node("Add", ["d", "x"], ["sum"], name="add"),
        helper.make_node("Cast", ["sum"], ["half"], name="cast", to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["sum"], ["quarter"], name="quantize", to=TensorProto.INT4),
    ]
    weights = [weight("k1", [2, 2, 3, 3]), weight("k2", [2, 2, 3, 3])]
    outputs = [value("half", [1, 2, 5, 5], TensorProto.BFLOAT16), value("quarter", [1, 2, 5, 5], TensorProto.INT4)]
    # The kernels stand among the inputs too, as in models of before 2019.
    inputs = [value("x", [1, 2, 5, 5]), value("k1", [2, 2, 3, 3]), value("k2", [2, 2, 3, 3])]
    return helper.make_graph(nodes, "residual", inputs, outputs, weights)


def branch():
    """Tensors that only the branches of a later If read, and one that nothing reads."""
    one = helper.make_graph([helper.make_node("Neg", ["early"], ["n"])], "one", [], [value("n", [4])])
    two = helper.make_graph([helper.make_node("Identity", ["other"], ["i"])], "two", [], [value("i", [4])])
    nodes = [
        helper.make_node("Abs", ["x"], ["early"]),
        helper.make_node("Exp", ["x"], ["other"]),
        helper.make_node("Sqrt", ["x"], ["unread"]),
        helper.make_node("If", ["flag"], ["y"], then_branch=one, else_branch=two),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    inputs = [value("x", [4]), value("flag", [], TensorProto.BOOL)]
    return helper.make_graph(nodes, "branch", inputs, [value("z", [4])])


save("mlp.onnx", mlp())
save("mlp_no_shapes.onnx", mlp(), infer=False)
save("residual.onnx", residual())
save("branch.onnx", branch())
