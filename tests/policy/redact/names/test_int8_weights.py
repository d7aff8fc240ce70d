"""A model's 4-bit products as 8-bit ones: the same results, within what eight bits hold."""

import pytest

numpy = pytest.importorskip("numpy")
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from policy.redact.names.int8_weights import with_int8_weights  # noqa: E402

INNER, OUTER, SIZE = 64, 48, 32


def packed(path, *, zeros: bool, bits: int = 4):
    """A model of one product of 4-bit weights, and the weights that it stands for [inner, outer]."""
    rng = numpy.random.default_rng(7)
    four = rng.integers(0, 16, (OUTER, INNER // SIZE, SIZE), dtype=numpy.uint8)
    scales = rng.uniform(0.01, 0.05, (OUTER, INNER // SIZE)).astype(numpy.float32)
    points = rng.integers(5, 11, (OUTER, INNER // SIZE), dtype=numpy.uint8)
    parts = {"b": four[:, :, ::2] | four[:, :, 1::2] << 4, "s": scales.reshape(-1)}
    if zeros:
        parts["z"] = (points[:, ::2] | points[:, 1::2] << 4).reshape(-1)
    node = onnx.helper.make_node(
        "MatMulNBits",
        ["x", *parts],
        ["y"],
        name="product",
        domain="com.microsoft",
        K=INNER,
        N=OUTER,
        bits=bits,
        block_size=SIZE,
    )
    graph = onnx.helper.make_graph(
        [node],
        "one product",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", INNER])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", OUTER])],
        [onnx.numpy_helper.from_array(value, name) for name, value in parts.items()],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    offset = points[:, :, None].astype(int) if zeros else 8
    return ((four.astype(int) - offset) * scales[:, :, None]).reshape(OUTER, INNER).T


@pytest.mark.parametrize("zeros", [False, True])
def test_products_are_the_same_but_for_rounding(tmp_path, zeros):
    weights = packed(tmp_path / "model.onnx", zeros=zeros)
    model = with_int8_weights(tmp_path / "model.onnx")
    assert b"MatMulNBits" not in model
    rows = numpy.random.default_rng(8).normal(size=(5, INNER)).astype(numpy.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    got, wanted = session.run(None, {"x": rows})[0], rows @ weights
    assert numpy.abs(got - wanted).max() < 0.02 * numpy.abs(wanted).max()


def test_weights_of_other_widths_are_refused(tmp_path):
    packed(tmp_path / "model.onnx", zeros=False, bits=8)
    with pytest.raises(ValueError, match="not of 4 bits"):
        with_int8_weights(tmp_path / "model.onnx")
