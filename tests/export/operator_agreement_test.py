"""Each operator of a file by itself: rounding that accumulates is none of its faults."""

import dataclasses

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from udc_tf.export import agreement, errors, int8, operator_agreement, tflite_writer

IMAGES = np.random.default_rng(0).normal(size=(16, 4, 4, 8)).astype("float32")


def deep() -> keras.Model:
    """Sensitive, and of operators that TFLM rounds more often than a simulation does."""
    keras.utils.set_random_seed(0)
    x = inputs = keras.Input((4, 4, 8))
    for i in range(8):
        drawn = keras.initializers.RandomNormal(0, 0.9)
        x = kl.Conv2D(8, 1, kernel_initializer=drawn, name=f"conv{i}")(x)
        x = kl.Activation("hard_swish", name=f"swish{i}")(x)
    outputs = kl.Dense(4)(kl.GlobalAveragePooling2D()(x))
    return udc_tf.compact(keras.Model(inputs, outputs), bits=8)


def test_right_operators_pass_however_far_rounding_has_come():
    model = deep()
    exact = int8.to_int8(model, IMAGES)
    assert operator_agreement.first_fault(exact, [IMAGES]) is None
    (output,) = agreement.check(model, exact, [IMAGES])["outputs"]
    # One step would be allowed to a network that rounds itself; this one is let pass.
    assert 1 < output["steps"] <= output["allowed_steps"] and output["distance"] < 0.14


def test_a_fault_is_no_rounding(monkeypatch):
    write = tflite_writer.write

    def faulty(lowered, quantizations):
        steps = [
            dataclasses.replace(s, activation="RELU6") if s.name == "conv6" else s
            for s in lowered.steps
        ]
        return write(dataclasses.replace(lowered, steps=steps), quantizations)

    monkeypatch.setattr(tflite_writer, "write", faulty)
    model = deep()
    exact = int8.to_int8(model, IMAGES)
    assert operator_agreement.first_fault(exact, [IMAGES]).name == "conv6"
    with pytest.raises(errors.MismatchError, match="first layer that departs is `conv6`"):
        agreement.check(model, exact, [IMAGES])


def test_a_bias_that_repairs_what_was_before_is_no_fault():
    exact = int8.to_int8(deep(), IMAGES)
    kernel = next(step for step in exact.network.steps if step.name == "conv3").kernel
    written = kernel.bias.copy()
    kernel.bias[:] = written + 10.0  # as trained: errors of the layers before took the rest of it
    assert operator_agreement.first_fault(exact, [IMAGES]) is None
    assert np.abs(written).max() < 10.0
