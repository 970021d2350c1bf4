"""After finetuning, what the file must round of a bias is already rounded in the network."""

import keras
import numpy as np
import pytest

import udc_tf
from udc_tf.export.int8 import to_int8
from udc_tf.export.integer_network import bias_scales
from udc_tf.finetune.run import finetune
from udc_tf.finetune.whole_biases import make_biases_whole

_RNG = np.random.default_rng(0)
_X = _RNG.normal(size=(64, 6, 6, 3)).astype("float32")
_Y = np.arange(64) % 3
_LAYERS = ("conv", "depthwise", "inner", "head")


def _network(bits):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(8, 3, padding="same", name="conv")(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(name="bn")(x))
    x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.DepthwiseConv2D(3, use_bias=False, name="depthwise")(x)
    x = keras.layers.BatchNormalization(name="plain_bn", scale=False)(x)
    x = keras.layers.Dense(8, activation="relu", name="inner")(keras.layers.Flatten()(x))
    model = keras.Model(inputs, keras.layers.Dense(3, name="head")(x))
    return udc_tf.compact(model, bits=bits, nonzeros=0.7)


def _rests(tiny):
    """How far the biases that export computes are from whole units, in units."""
    exact = to_int8(tiny)
    rests = {}
    for step in exact.network.kernels:
        held = step.kernel.bias / bias_scales(step, exact.quantizations)
        rests[step.name] = np.abs(held - np.round(held)).max()
    return rests


@pytest.mark.parametrize("bits", [1, 4])
def test_finetuning_leaves_whole_biases(bits):
    tiny = _network(bits)
    finetune(tiny, (_X, _Y), stages=udc_tf.Stages(epochs=(1, 1, 1)), batch_size=16, verbose=0)
    rests = _rests(tiny)
    assert set(rests) == set(_LAYERS) and max(rests.values()) < 0.01

    for name, noise in (("bn", 0.3), ("plain_bn", 0.3), ("inner", 0.1), ("head", 0.1)):
        layer = tiny.get_layer(name)
        offset = getattr(layer, "bias", None)
        offset = layer.beta if offset is None else offset
        offset.assign(offset + noise * _RNG.normal(size=offset.shape))
    assert min(_rests(tiny).values()) > 0.1
    before = tiny.predict(_X, verbose=0)
    assert make_biases_whole(tiny) > 20
    assert max(_rests(tiny).values()) < 0.01
    # Half a unit each is all that moves.
    assert np.abs(tiny.predict(_X, verbose=0) - before).mean() < 0.5 * before.std()


def test_nothing_to_do_before_activations_are_rounded():
    tiny = _network(4)
    tiny(_X, training=True)
    assert make_biases_whole(tiny) == 0


def test_dead_channels_stay():
    tiny = _network(4)
    finetune(tiny, (_X, _Y), stages=udc_tf.Stages(epochs=(0, 1, 1)), batch_size=16, verbose=0)
    gamma = tiny.get_layer("bn").gamma
    gamma.assign(np.zeros(gamma.shape))
    before = tiny.get_layer("bn").moving_mean.numpy()
    make_biases_whole(tiny)
    np.testing.assert_array_equal(tiny.get_layer("bn").moving_mean.numpy(), before)


@pytest.mark.parametrize(
    ("kernel", "norm", "channels"),
    [
        ("conv", "bn", np.s_[..., [1, 4]]),
        ("transposed", "transposed_bn", np.s_[..., [0, 3], :]),
        ("depthwise", "plain_bn", np.s_[..., [2], 1]),
    ],
)
def test_channels_without_weights_keep_their_value(kernel, norm, channels):
    """With next to no variance batch norm would make a large step of half a unit."""
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(8, 3, padding="same", name="conv")(inputs)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(name="bn")(x))
    x = keras.layers.Conv2DTranspose(5, 3, use_bias=False, name="transposed")(x)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization(name="transposed_bn")(x))
    x = keras.layers.DepthwiseConv2D(3, depth_multiplier=2, name="depthwise")(x)
    x = keras.layers.BatchNormalization(name="plain_bn", scale=False)(x)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalMaxPooling2D()(x)))
    tiny = udc_tf.compact(model, bits=4)
    stages = udc_tf.Stages(epochs=(0, 1, 0))
    finetune(tiny, (_X, _Y), stages=stages, batch_size=64, verbose=0)
    layer, bn = tiny.get_layer(kernel), tiny.get_layer(norm)
    mask = layer.mask.numpy()
    mask[channels] = 0
    layer.mask.assign(mask)
    is_dead = np.ptp(_outputs(tiny, kernel), axis=(0, 1, 2)) == 0
    assert 0 < is_dead.sum() < len(is_dead)
    variance = bn.moving_variance.numpy()
    bn.moving_variance.assign(np.where(is_dead, 1e-9, variance))
    before = _outputs(tiny, norm)
    make_biases_whole(tiny)
    assert _rests(tiny)[kernel] < 0.01
    after = _outputs(tiny, norm)
    np.testing.assert_allclose(after[..., is_dead], before[..., is_dead], rtol=1e-3, atol=1e-4)


def _outputs(model, name):
    return keras.Model(model.inputs, model.get_layer(name).output).predict(_X, verbose=0)
