"""Batch norms get the statistics of their inputs, and compute what they did."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support import networks
from udc_tf.compress.norm_statistics import measure_norms


@pytest.fixture
def network():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 2))
    x = kl.BatchNormalization(name="norm")(kl.Conv2D(6, 3, use_bias=False)(inputs))
    x = kl.DepthwiseConv2D(3, use_bias=False)(kl.ReLU()(x))
    x = kl.BatchNormalization(scale=False, name="without_gain")(x)
    x = kl.GlobalAveragePooling2D()(kl.ReLU()(x))
    return udc_tf.compact(networks.randomized(keras.Model(inputs, kl.Dense(4)(x))), bits=3)


def test_statistics_are_those_of_the_inputs_and_outputs_stay(network):
    x = networks.normal(8, 8, 2, count=100)
    before, others = network(x).numpy(), network.get_layer("without_gain").get_weights()
    measure_norms(network, [x])
    np.testing.assert_allclose(network(x).numpy(), before, atol=1e-5)
    norm = network.get_layer("norm")
    seen = keras.Model(network.input, norm.input)(x).numpy()
    np.testing.assert_allclose(norm.moving_mean, seen.mean((0, 1, 2)), atol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, seen.var((0, 1, 2)), rtol=1e-4)
    for old, new in zip(others, network.get_layer("without_gain").get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_channel_that_is_always_the_same_keeps_its_statistics(network):
    kernel = network.layers[2] if hasattr(network.layers[2], "theta") else network.layers[1]
    mask = kernel.mask.numpy()
    mask[..., 0] = 0.0
    kernel.mask.assign(mask)
    x, norm = networks.normal(8, 8, 2, count=20), network.get_layer("norm")
    before, variance = network(x).numpy(), norm.moving_variance.numpy()
    measure_norms(network, [x])
    assert norm.moving_variance.numpy()[0] == variance[0]
    np.testing.assert_allclose(network(x).numpy(), before, atol=1e-5)
