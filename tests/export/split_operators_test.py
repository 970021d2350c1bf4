"""What TFLM does not do in one operator arrives all the same."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf.export
from tests.support.networks import normal
from udc_tf.export.int8 import to_int8


def _arrives(model, data, tmp_path):
    made = udc_tf.export.export(model, tmp_path, calibration=data)
    codes = np.random.default_rng(1).integers(-128, 128, (8, *data.shape[1:])).astype(np.int8)
    golden = udc_tf.export.run(made.tflite_path, codes, on="tflm").outputs[0]
    found = udc_tf.export.run(made.vela_path, codes, on="npu").outputs[0]
    np.testing.assert_array_equal(found, golden)
    return [step.kind for step in to_int8(model, data).network.steps]


def test_more_tensors_than_tflm_joins(tmp_path):
    """As a layer over time gives a tensor for each of its steps."""
    inputs = keras.Input((4, 4, 3))
    each = [kl.Conv2D(2, 1, activation="relu")(inputs) for _ in range(23)]
    model = keras.Model(inputs, kl.Conv2D(3, 1)(kl.Concatenate()(each)))
    assert _arrives(model, normal(4, 4, 3, count=16), tmp_path).count("CONCATENATION") == 4


@pytest.mark.parametrize("most", [None, 6.0])
def test_relu_of_a_transposed_convolution_that_is_joined_with_less_than_zero(most, tmp_path):
    inputs = keras.Input((4, 4, 3))
    up = kl.ReLU(most)(kl.Conv2DTranspose(3, 3, 2, "same", kernel_initializer="he_normal")(inputs))
    other = kl.UpSampling2D()(kl.Conv2D(3, 1, kernel_initializer="he_normal")(inputs))
    model = keras.Model(inputs, kl.Conv2D(3, 1)(kl.Concatenate()([up, other])))
    kinds = _arrives(model, 9 * normal(4, 4, 3, count=16), tmp_path)
    assert ("RELU" if most is None else "RELU6") in kinds


def test_a_range_that_begins_at_zero_is_a_relu():
    model = keras.Sequential(
        [keras.Input((4, 4, 3)), kl.Conv2DTranspose(3, 3, 2, activation="relu"), kl.Conv2D(2, 1)]
    )
    kinds = [step.kind for step in to_int8(model, normal(4, 4, 3, count=16)).network.steps]
    assert kinds == ["TRANSPOSE_CONV", "CONV_2D"]
