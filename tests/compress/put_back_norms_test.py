"""Batch norms behind convolutions that have none: the same function, a step for each channel."""

import keras
import numpy as np
from keras import layers as kl

import udc_tf
from tests.support import networks
from udc_tf.compress.compress_settings import CompressSettings
from udc_tf.compress.put_back_norms import with_norms


def _network():
    """A convolution called twice, one with a batch norm, one that gives the output, and others."""
    inputs = keras.Input((8, 8, 2))
    scale = kl.Normalization()
    scale.adapt(networks.normal(8, 8, 2, count=16) * 3 + 1)
    x = kl.Conv2D(4, 3, padding="same", activation="relu", name="bare")(scale(inputs))
    x = kl.DepthwiseConv2D(3, padding="same", name="linear")(x)
    twice = kl.Conv2D(4, 1, name="twice")
    x = twice(twice(x))
    x = kl.BatchNormalization(name="own")(kl.Conv2D(4, 1, use_bias=False, name="followed")(x))
    model = keras.Model(inputs, kl.Conv2D(3, 1, name="output")(x))
    model = networks.randomized(model)
    for layer in model.layers:
        if getattr(layer, "bias", None) is not None:
            layer.bias.assign(np.linspace(-1, 1, layer.bias.shape[0]))
    return model


def _uneven(seed: int = 0):
    """Folded: channels that differ a hundredfold."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((10, 10, 3)),
            kl.Conv2D(16, 3, activation="relu", name="first"),
            kl.Conv2D(16, 3, activation="relu", name="second"),
            kl.GlobalAveragePooling2D(),
            kl.Dense(4, name="head"),
        ]
    )
    sizes = np.geomspace(0.1, 10, 16).astype("float32")
    first, second, head = (model.get_layer(n) for n in ("first", "second", "head"))
    first.kernel.assign(first.kernel * sizes)
    first.bias.assign(0.1 * sizes)
    second.kernel.assign(second.kernel / sizes[:, None])
    head.bias.assign([0.1, 0.2, -0.1, 0.0])
    return model


def test_the_function_stays_and_only_bare_convolutions_get_one():
    model = _network()
    found = with_norms(model)
    x = networks.images(model)
    np.testing.assert_allclose(found(x), model(x), rtol=1e-5, atol=1e-5)
    norms = [x.name for x in found.layers if isinstance(x, kl.BatchNormalization)]
    assert sorted(norms) == ["bare_norm", "linear_norm", "own"]
    assert found.output_names == model.output_names
    assert found.layers[0].name == model.layers[0].name, "inputs go by their names"


def test_a_model_that_needs_none_is_given_back():
    model = keras.Sequential([keras.Input((4,)), kl.Dense(3)])
    assert with_norms(model) is model


def test_channels_of_different_sizes_lose_less():
    model, x = _uneven(), networks.normal(10, 10, 3, count=32)
    space = udc_tf.SearchSpace(bits=(2, 3))
    distances = [
        udc_tf.compress(
            model,
            udc_tf.Macs(1e9),
            x,
            space=space,
            settings=CompressSettings(put_back_norms=there, steps=0, probe_examples=8),
        ).compression.divergence
        for there in (True, False)
    ]
    assert distances[0] < 0.5 * distances[1]
