"""Layers with options: as Keras layers, and outside a search."""

import keras
import numpy as np
import pytest
from keras import layers as kl

import udc_tf
from tests.support.layers import run_layer_test
from tests.support.networks import normal

_OPTIONS = {"bits": (1, 2, 8), "sparsities": (0.2, 0.5, 1.0), "widths": (0.5, 1.0)}
_IMAGE = (8, 8, 3)


@pytest.mark.parametrize(
    "layer,input_shape,output_shape",
    [
        (lambda **kw: udc_tf.UDCConv2D(6, 3, strides=2, kernels=(1, 3), **kw), _IMAGE, (3, 3, 6)),
        (lambda **kw: udc_tf.UDCConv1DTranspose(5, 3, strides=2, **kw), (8, 3), (17, 5)),
        (lambda **kw: udc_tf.UDCConv2DTranspose(5, 3, strides=2, **kw), _IMAGE, (17, 17, 5)),
        (lambda **kw: udc_tf.UDCDense(4, **kw), (7,), (4,)),
        (lambda **kw: udc_tf.UDCDense(4, activation="relu", **kw), _IMAGE, (8, 8, 4)),
    ],
    ids=["conv", "transposed sequence", "transposed", "dense", "dense on images"],
)
def test_as_keras_layers(layer, input_shape, output_shape, tmp_path):
    keras.utils.set_random_seed(0)
    run_layer_test(
        layer(**_OPTIONS), input_shape, output_shape, tmp_path, trainable=2, non_trainable=2
    )
    plain = layer(use_bias=False, width_group="a", input_group=["b", "c"])
    run_layer_test(plain, input_shape, output_shape, tmp_path, trainable=1)


@pytest.mark.parametrize("sizes", [(7, 6), (None, None), (None,), (7,)])
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("padding", ["valid", "same"])
def test_one_tap_is_a_convolution(sizes, strides, padding):
    ours, theirs = (
        (udc_tf.UDCConv2D, kl.Conv2D) if len(sizes) == 2 else (udc_tf.UDCConv1D, kl.Conv1D)
    )
    inputs = keras.Input((*sizes, 3))
    models = [
        keras.Model(inputs, kind(4, 1, strides=strides, padding=padding)(inputs))
        for kind in (ours, theirs)
    ]
    assert models[0].output_shape == models[1].output_shape
    models[1].set_weights(models[0].get_weights())
    x = normal(*(n or 5 for n in sizes), 3)
    np.testing.assert_allclose(models[0](x), models[1](x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size,strides,dilation", [(3, 1, 1), (4, 2, 1), ((5, 2), 1, 1), (3, 1, 2)])
@pytest.mark.parametrize("ones", [(1, 1), (1,)])
def test_depthwise_on_one_position(ones, size, strides, dilation):
    flat = len(ones) == 1
    size = size[0] if flat and isinstance(size, tuple) else size
    ours, theirs = (
        (udc_tf.UDCDepthwiseConv1D, kl.DepthwiseConv1D)
        if flat
        else (udc_tf.UDCDepthwiseConv2D, kl.DepthwiseConv2D)
    )
    inputs = keras.Input((*ones, 3))
    options = {"strides": strides, "dilation_rate": dilation, "depth_multiplier": 2}
    models = [
        keras.Model(inputs, kind(size, padding="same", **options)(inputs))
        for kind in (ours, theirs)
    ]
    assert models[0].output_shape == models[1].output_shape
    models[1].set_weights(models[0].get_weights())
    x = normal(*ones, 3)
    np.testing.assert_allclose(models[0](x), models[1](x), rtol=1e-6, atol=1e-6)


def test_depthwise_as_keras_layer(tmp_path):
    layer = udc_tf.UDCDepthwiseConv2D(3, depth_multiplier=2, bits=(4, 8), sparsities=(0.5, 1.0))
    run_layer_test(layer, _IMAGE, (6, 6, 6), tmp_path, trainable=2, non_trainable=2)


@pytest.mark.parametrize(
    "ours,theirs",
    [
        (udc_tf.UDCConv2D(6, 3, padding="same", **_OPTIONS), kl.Conv2D(6, 3, padding="same")),
        (udc_tf.UDCDepthwiseConv2D(3, bits=(1, 2)), kl.DepthwiseConv2D(3)),
        (udc_tf.UDCConv2DTranspose(5, 3, strides=2), kl.Conv2DTranspose(5, 3, strides=2)),
        (udc_tf.UDCDense(4, **_OPTIONS), kl.Dense(4)),
    ],
    ids=["conv", "depthwise", "transposed", "dense"],
)
def test_outside_a_search_it_is_keras_own_layer(ours, theirs):
    x = normal(*_IMAGE)
    theirs(x)
    ours.build(x.shape)
    ours.theta.assign(theirs.kernel)
    np.testing.assert_allclose(ours(x), theirs(x), atol=1e-5)
