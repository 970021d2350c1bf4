"""Layers of equal integers: Vela takes one for the other only where their scales are alike, too."""

import keras
import numpy as np
from keras import layers as kl

import udc_tf.export
from udc_tf.export.int8 import to_int8

_X = np.random.default_rng(0).uniform(-1, 1, (32, 4, 4, 4)).astype("float32")


def _kernels(model):
    return {step.name: step.kernel for step in to_int8(model, _X).network.kernels}


def test_equal_scales_are_moved_apart_and_no_bias_is_taken_for_another(tmp_path):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4, 4, 4))
    parts = [kl.Rescaling(0.5, offset=o, name=f"by{o}")(inputs) for o in (0.3, -0.3, 0.1)]
    model = keras.Model(inputs, kl.Conv2D(3, 1)(kl.Concatenate()(parts)))
    steps = {float(np.float32(k.scales[0])) for n, k in _kernels(model).items() if "by" in n}
    assert len(steps) == 3 and max(steps) - min(steps) < 1e-6 * min(steps)
    made = udc_tf.export.export(model, tmp_path, calibration=_X)
    codes = np.random.default_rng(1).integers(-128, 128, (8, 4, 4, 4)).astype(np.int8)
    golden = udc_tf.export.run(made.tflite_path, codes, on="tflm").outputs[0]
    found = udc_tf.export.run(made.vela_path, codes, on="npu").outputs[0]
    np.testing.assert_array_equal(found, golden)


def test_scales_that_differ_stay():
    x = inputs = keras.Input((4, 4, 4))
    drawn = [keras.initializers.RandomUniform(0.5, 1.5, seed=n) for n in range(3)]
    norms = [kl.BatchNormalization(gamma_initializer=d) for d in drawn]
    for norm in norms:
        x = norm(kl.MaxPooling2D(2, 1, "same")(x))
    kernels = _kernels(keras.Model(inputs, x))
    for norm in norms:
        expected = norm.gamma.numpy().astype(float) / np.sqrt(1.0 + norm.epsilon) / 127
        np.testing.assert_allclose(kernels[norm.name].scales, expected, rtol=1e-12)
