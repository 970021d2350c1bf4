"""The deployment with two tensors a layer: f(x, Q) + beta * f(x, sign)."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf.export
from udc_tf.export import int8, tflite_file, tflm_check, tightening


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """Convolutions in the shifted format, a dense layer that is not pruned."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = kl.ReLU()(kl.BatchNormalization()(kl.Conv2D(12, 3, use_bias=False, name="a")(inputs)))
    x = kl.ReLU()(kl.BatchNormalization()(kl.DepthwiseConv2D(3, use_bias=False, name="b")(x)))
    model = keras.Model(inputs, kl.Dense(4, name="head")(kl.Flatten()(x)))
    tiny = udc_tf.compact(model, bits=4, nonzeros=0.4, layers={"head": {"nonzeros": 1.0}})
    for layer in tightening.compact_layers(tiny):
        layer.refresh_mask(shifted=layer.nonzeros < 1)
        layer.fit_range()
    return tiny


@pytest.fixture(scope="module")
def data() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(64, 8, 8, 3)).astype("float32")


class TestTwoTensors:
    def test_shifted_layers_become_two_and_a_sum(self, model, data):
        exact = int8.to_int8(model, data, deployment="two_tensors")
        names = [step.name for step in exact.network.steps if step.kind != "RESHAPE"]
        assert names == ["a", "a_sign", "a_sum", "b", "b_sign", "b_sum", "head"]
        assert set(exact.shifts) == {"a", "b"}

    def test_the_tensors_add_up_to_the_layers_integers(self, model, data):
        exact = int8.to_int8(model, data, deployment="two_tensors")
        file = tflite_file.read(exact.content)
        levels, signs = (file.tensors[file.operators[i].inputs[1]] for i in (0, 1))
        assert np.abs(levels.data).max() <= 7 and set(np.unique(signs.data)) == {-1, 0, 1}
        checks = int8.checked_codes(model, exact)
        assert [c.layer for c in checks] == ["a", "b", "head"]
        assert not any(c.different or c.collapsed for c in checks)

    def test_computes_what_one_tensor_computes(self, model, data):
        outputs = []
        for deployment in int8.DEPLOYMENTS:
            exact = int8.to_int8(model, data, deployment)
            golden = tflm_check.run(exact.content, exact.quantize_inputs([data]))[0]
            difference = np.abs(golden - exact.reference([data])[0].astype(int))
            assert difference.mean() < 1 and difference.max() <= 6  # noise in, untrained weights
            outputs.append(exact.quantizations[exact.network.outputs[0]].dequantize(golden))
        assert np.abs(outputs[0] - outputs[1]).max() < 0.06 * np.ptp(outputs[0])

    def test_export_writes_it_on_request(self, model, data, tmp_path):
        single = udc_tf.export.export(model, tmp_path / "one", calibration=data)
        both = udc_tf.export.export(
            model, tmp_path / "two", calibration=data, deployment="two_tensors"
        )
        assert single.manifest["deployment"] == "single"
        assert both.manifest["deployment"] == "two_tensors"
        assert both.flash_bytes > single.flash_bytes

    def test_unknown_deployment(self, model, data):
        with pytest.raises(ValueError, match=r"two_tensors.*Received: 'three'"):
            int8.to_int8(model, data, deployment="three")
