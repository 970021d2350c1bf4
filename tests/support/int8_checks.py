"""Int8 networks against Keras, the fake-quant reference and TFLM."""

import copy
import dataclasses

import keras
import numpy as np
from keras import layers as kl

from udc_tf.export import bias_rounding, int8, simulation, tflite_writer, tflm_check
from udc_tf.layers.activation_quantizer import ActivationQuantizer


def as_trained(model: keras.Model, data: np.ndarray, seed: int = 0) -> keras.Model:
    """Weights as training leaves them: statistics that fit the data, some gammas negative."""
    rng = np.random.default_rng(seed)
    for layer in model.layers:
        if isinstance(layer, kl.BatchNormalization):
            signs = rng.choice([1, 1, -1], layer.gamma.shape)
            layer.gamma.assign(rng.uniform(0.5, 1.5, layer.gamma.shape) * signs)
            layer.beta.assign(rng.normal(0, 0.3, layer.beta.shape))
            layer.momentum = 0.0
        elif getattr(layer, "bias", None) is not None:
            layer.bias.assign(rng.normal(0, 0.1, layer.bias.shape))
    model(data, training=True)
    return model


def check(model: keras.Model, data) -> int8.Int8Model:
    """Float equals Keras, and in TFLM every operator is within 1 of the fake-quant network's."""
    arrays = data if isinstance(data, list) else [data]
    exact = int8.to_int8(model, data)
    expected = model.predict(data, verbose=0)
    expected = expected if isinstance(expected, list) else [expected]
    plain = any(type(layer) in (kl.Conv2D, kl.Dense) for layer in model.layers)
    quantizers = [q for q in model.layers if isinstance(q, ActivationQuantizer)]
    rounded = any(float(q.enabled.numpy()) > 0.5 for q in quantizers)
    floating = simulation.run(exact.network, arrays, exact.quantizations if rounded else None)
    for ours, theirs in zip(floating, expected, strict=True):
        # A plain layer's weights are rounded to 8 bits here. A compact one's are what they are, but
        # for the scale of a dense layer, which may move by 1/2048 (`export/dense_scale.py`).
        tolerance = (0.04 if plain else 6e-4) * np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, atol=tolerance)
    tflm_check.run(exact.content, exact.quantize_inputs(arrays))
    held = {}
    simulation.run(exact.network, arrays, exact.quantizations, observe=held.__setitem__)
    codes = {i: exact.quantizations[i].quantize(array) for i, array in held.items()}
    unrepaired = dataclasses.replace(exact.network, steps=[*map(copy.copy, exact.network.steps)])
    bias_rounding.round_biases(unrepaired, exact.quantizations, None)
    for step in unrepaired.steps:
        alone = dataclasses.replace(
            unrepaired, steps=[step], inputs=step.inputs, outputs=(step.output,)
        )
        content = tflite_writer.write(alone, exact.quantizations)
        (golden,) = tflm_check.run(content, [codes[i] for i in step.inputs])
        difference = np.abs(golden.astype(int) - codes[step.output])
        assert difference.max() <= 1, (step.kind, np.bincount(difference.ravel()))
    return exact


def kinds(exact: int8.Int8Model) -> list[str]:
    return [step.kind for step in exact.network.steps]


def conv_bn_relu(x, filters, **kwargs):
    x = kl.Conv2D(filters, 3, use_bias=False, **kwargs)(x)
    return kl.ReLU()(kl.BatchNormalization()(x))
