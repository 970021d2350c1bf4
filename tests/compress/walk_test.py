"""Two networks side by side; what layers get that are called more than once."""

import keras
import numpy as np
from keras import layers as kl

import udc_tf
from tests.support import networks
from udc_tf.compress.walk import Walk


def _network():
    inputs = keras.Input((6,), name="vector")
    shared = kl.Dense(6, activation="relu", name="shared")
    x = kl.Dense(3, name="head")(shared(shared(inputs)))
    return udc_tf.compact(networks.randomized(keras.Model(inputs, x)), bits=32)


def test_its_outputs_are_those_of_the_network():
    network, x = _network(), networks.normal(6, count=70)
    outputs, originals = Walk(network, network).run([x], lambda call: None)
    np.testing.assert_allclose(outputs[0], network(x), atol=1e-6)
    np.testing.assert_array_equal(outputs[0], originals[0])


def test_a_shared_layer_gets_what_all_its_calls_get():
    network, x = _network(), networks.normal(6, count=10)
    found = Walk(network, network).shared_inputs([x])
    assert set(found) == {"shared"}
    second = network.get_layer("shared")(x)
    np.testing.assert_allclose(found["shared"], np.concatenate([x[::2], second[1::2]]), atol=1e-6)
