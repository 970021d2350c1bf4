"""Sigmoid and tanh: the same 256 codes in TFLM and in Vela's tables."""

import numpy as np
import pytest

from tests.support import npu_networks as nets
from udc_tf.export import table_scale, tflite_writer, tflm_check
from udc_tf.export.integer_network import IntegerNetwork, Quantization, Step, Value
from udc_tf.export.npu import NpuNetwork

# Of 6,000 random ranges of a sigmoid, the one that TFLM and Vela have differently.
_DISPUTED = Quantization(np.float32(0.033789973706007004), -104)
_OF_SIGMOID = Quantization(np.float32(1 / 256), -128)
_OF_TANH = Quantization(np.float32(1 / 128), 0)
_CODES = np.arange(-128, 128, dtype=np.int8).reshape(1, 1, 1, 256)


def network(*kinds: str) -> IntegerNetwork:
    """Functions of one value."""
    values = [Value("x", (1, 1, 1, 256)), *(Value(kind, (1, 1, 1, 256)) for kind in kinds)]
    steps = [Step(kind, kind, (0,), n) for n, kind in enumerate(kinds, 1)]
    return IntegerNetwork("tables", values, steps, (0,), tuple(range(1, len(values))))


def differing(model: IntegerNetwork, quantizations: list[Quantization]) -> int:
    """Codes of which the NPU gives another than TFLM."""
    content = tflite_writer.write(model, quantizations)
    golden = tflm_check.run(content, [_CODES])
    npu = NpuNetwork(nets.compile_in_process(content)).run([_CODES])
    return sum(int((a != b.reshape(a.shape)).sum()) for a, b in zip(golden, npu, strict=True))


def test_a_disputed_scale_is_moved():
    model, quantizations = network("LOGISTIC", "TANH"), [_DISPUTED, _OF_SIGMOID, _OF_TANH]
    assert differing(model, quantizations) > 0
    table_scale.settle(model, quantizations)
    assert differing(model, quantizations) == 0
    assert quantizations[1:] == [_OF_SIGMOID, _OF_TANH]
    assert quantizations[0].scale == pytest.approx(_DISPUTED.scale, rel=1 / 2048)
    assert quantizations[0] != _DISPUTED


def test_others_stay():
    model = network("LOGISTIC", "TANH")
    quantizations = [Quantization(np.float32(0.05), 3), _OF_SIGMOID, _OF_TANH]
    before = list(quantizations)
    table_scale.settle(model, quantizations)
    assert quantizations == before


def test_what_has_the_same_scale_moves_along():
    model = network("LOGISTIC")
    model.values.append(Value("follower", (1, 1, 1, 256), follows=0))
    quantizations = [_DISPUTED, _OF_SIGMOID, _DISPUTED]
    table_scale.settle(model, quantizations)
    assert quantizations[2] == quantizations[0] != _DISPUTED


def test_a_prescribed_scale_stays():
    model = network("LOGISTIC")
    model.values[0].prescribed = True
    quantizations = [_DISPUTED, _OF_SIGMOID]
    table_scale.settle(model, quantizations)
    assert quantizations[0] == _DISPUTED
