"""Kernels in front of batch norms get the size of fresh ones, and the function stays."""

import keras
import numpy as np
import pytest

import udc_tf
from udc_tf.finetune.rescaling import restore_norms
from udc_tf.finetune.run import finetune

_X = np.random.default_rng(0).normal(size=(32, 6, 6, 3)).astype("float32")


def _grown(factor=5.0):
    """A network with a residual block whose kernels were made larger."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 3))
    x = udc_tf.UDCConv2D(4, 3, padding="same", name="first")(inputs)
    x = keras.layers.BatchNormalization(epsilon=1e-6, name="first_bn")(x)
    x = keras.layers.ReLU()(x)
    y = udc_tf.UDCDepthwiseConv2D(3, padding="same", name="depthwise")(x)
    y = keras.layers.BatchNormalization(epsilon=1e-6, name="depthwise_bn")(y)
    x = keras.layers.Add()([x, y])
    # Neither of these is undone by a batch norm: an activation before it, and none at all.
    x = udc_tf.UDCConv2D(4, 1, activation="sigmoid", name="bent")(x)
    x = keras.layers.BatchNormalization(name="bent_bn")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, udc_tf.UDCDense(2, name="head")(x))
    for layer in model.layers:
        if hasattr(layer, "theta"):
            layer.theta.assign(factor * layer.theta)
            layer.bias.assign(np.random.default_rng(1).normal(size=layer.bias.shape))
    model.compile("sgd", "mse")
    model(_X, training=True)
    return model


class TestRestoreNorms:
    def test_function_stays(self):
        model = _grown()
        before = model.predict(_X, verbose=0)
        restore_norms(model)
        np.testing.assert_allclose(model.predict(_X, verbose=0), before, rtol=1e-3, atol=1e-3)

    def test_only_what_a_batch_norm_follows_at_once(self):
        factors = restore_norms(_grown())
        # As large as kernels are on average, which 36 weights by themselves need not be.
        assert factors == pytest.approx({"first": 0.2, "depthwise": 0.2}, rel=0.2)

    def test_kernels_of_zeros_stay(self):
        model = _grown(factor=0.0)
        assert restore_norms(model) == {}
        assert np.isfinite(model.predict(_X, verbose=0)).all()

    def test_shared_kernels_stay(self):
        inputs = keras.Input((4,))
        dense = udc_tf.UDCDense(4, name="dense")
        x = keras.layers.BatchNormalization()(dense(inputs))
        y = keras.layers.BatchNormalization()(dense(x))
        assert restore_norms(keras.Model(inputs, y)) == {}

    def test_finetuning_begins_with_it(self):
        keras.utils.set_random_seed(0)
        inputs = keras.Input((6, 6, 3))
        x = keras.layers.Conv2D(4, 3, name="conv")(inputs)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
        x = keras.layers.Dense(2, name="head")(keras.layers.Flatten()(x))
        search = udc_tf.make_searchable(keras.Model(inputs, x), "ethos_u55", udc_tf.Flash("20KiB"))
        y = np.arange(len(_X)) % 2
        sizes = {}
        for start in ("inherited", "fresh"):
            tiny = search.architecture(_X).build()
            tiny.get_layer("conv").theta.assign(9 * tiny.get_layer("conv").theta)
            stages = udc_tf.Stages(epochs=(0, 1, 0), start=start, learning_rates=_STILL)
            finetune(tiny, (_X, y), stages=stages, verbose=0)
            sizes[start] = np.square(tiny.get_layer("conv").theta).mean() ** 0.5
        assert np.isclose(sizes["inherited"], sizes["fresh"], rtol=0.3)


_STILL = (udc_tf.Cosine(1e-6, 1e-6),) * 3
