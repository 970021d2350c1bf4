"""Products of two values, and rescaling ReLUs: the same codes in TFLM and in Vela."""

import numpy as np
import pytest

from tests.support import npu_networks as nets
from udc_tf.export import product_scale, tflite_writer, tflm_check
from udc_tf.export.integer_network import IntegerNetwork, Quantization, Step, Value
from udc_tf.export.npu import NpuNetwork

_SHAPE = (1, 1, 256, 256)
# All pairs of codes, each once.
_CODES = [
    np.broadcast_to(np.arange(-128, 128, dtype=np.int8)[axis], _SHAPE).copy()
    for axis in ((None, None, slice(None), None), (None, None, None, slice(None)))
]


def network() -> IntegerNetwork:
    values = [Value(name, _SHAPE) for name in ("a", "b", "product")]
    return IntegerNetwork("products", values, [Step("MUL", "gate", (0, 1), 2)], (0, 1), (2,))


def scales(a: float, b: float, product: float) -> list[Quantization]:
    return [Quantization(np.float32(s), 0) for s in (a, b, product)]


def relu() -> IntegerNetwork:
    values = [Value(name, _SHAPE) for name in ("sum", "positive")]
    return IntegerNetwork("relu", values, [Step("RELU", "relu", (0,), 1)], (0,), (1,))


def differing(quantizations: list[Quantization], model: IntegerNetwork | None = None) -> int:
    """Values of which the NPU gives another than TFLM."""
    model = model or network()
    content = tflite_writer.write(model, quantizations)
    codes = _CODES[: len(model.inputs)]
    (golden,) = tflm_check.run(content, codes)
    (npu,) = NpuNetwork(nets.compile_in_process(content)).run(codes)
    return int((golden != npu.reshape(golden.shape)).sum())


def test_a_disputed_scale_is_moved():
    # a * b / product is 1/128 in float32, a little less in float64: 64, a half, is rounded apart.
    disputed = scales(0.0012500375742092729, 0.1939340978860855, 0.031030388548970222)
    assert differing(disputed) > 0
    settled = list(disputed)
    product_scale.settle(network(), settled)
    assert differing(settled) == 0
    assert settled[:2] == disputed[:2]
    assert settled[2] != disputed[2]
    assert settled[2].scale == pytest.approx(disputed[2].scale, rel=1 / 2048)


def test_a_scale_that_agrees_stays():
    quantizations = scales(0.5, 0.25, 0.125)
    product_scale.settle(network(), quantizations)
    assert quantizations == scales(0.5, 0.25, 0.125)


def test_most_random_scales_are_settled_and_hardly_moved():
    rng = np.random.default_rng(0)
    agreed = []
    for _ in range(50):
        given = scales(*np.exp(rng.uniform(-8, 0, 3)))
        settled = list(given)
        product_scale.settle(network(), settled)
        a, b, product = (q.scale for q in settled)
        agreed.append(product_scale.agree(a, b, np.array([product])).all())
        assert product == pytest.approx(given[2].scale, rel=1 / 2048)
    assert np.mean(agreed) > 0.85


def test_what_has_the_same_scale_moves_along():
    model = network()
    model.values.append(Value("follower", _SHAPE, follows=2))
    quantizations = [*scales(0.1, 0.3, 0.7), Quantization(np.float32(0.7), 0)]
    product_scale.settle(model, quantizations)
    assert quantizations[3] == quantizations[2] != Quantization(np.float32(0.7), 0)


def test_a_prescribed_scale_stays():
    model = network()
    model.values[2].prescribed = True
    quantizations = scales(0.1, 0.3, 0.7)
    product_scale.settle(model, quantizations)
    assert quantizations == scales(0.1, 0.3, 0.7)


# input / output times some code is a half, but for the rounding of float32.
@pytest.mark.parametrize(
    "given",
    [
        (0.3663613498210907, 0.2215208113193512),
        (0.008156649768352509, 0.0114112738519907),
        (0.3444669842720032, 0.14243128895759583),
    ],
)
def test_a_disputed_relu_is_moved(given):
    disputed = [Quantization(np.float32(scale), -128) for scale in given]
    assert differing(disputed, relu()) > 0
    settled = list(disputed)
    product_scale.settle(relu(), settled)
    assert differing(settled, relu()) == 0
    assert settled[0] == disputed[0]
    assert settled[1].scale == pytest.approx(disputed[1].scale, rel=1 / 2048)


def test_most_relus_stay():
    rng = np.random.default_rng(0)
    stayed = []
    for _ in range(100):
        given = [Quantization(np.float32(s), -128) for s in np.exp(rng.uniform(-4, 0, 2))]
        settled = list(given)
        product_scale.settle(relu(), settled)
        stayed.append(settled == given)
        a, positive = (q.scale for q in settled)
        assert product_scale.rounds_alike(a, np.array([positive])).all()
    assert np.mean(stayed) > 0.9
