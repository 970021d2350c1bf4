"""Kernels and what becomes part of them."""

import gc
import weakref

import keras
from keras import layers as kl

import udc_tf
from udc_tf.graph.folds import folds, means


def _network() -> keras.Model:
    x = inputs = keras.Input((8, 8, 2))
    x = kl.ReLU()(kl.BatchNormalization(name="norm")(kl.Conv2D(4, 3, name="conv")(x)))
    return udc_tf.compact(keras.Model(inputs, kl.GlobalAveragePooling2D()(x)))


def test_found_are_the_layers_of_the_network_that_is_asked_about():
    first, second = _network(), _network()
    for network in (first, second, first):
        (fold,), (mean,) = folds(network), means(network)
        assert fold.kernel is network.get_layer("conv")
        assert fold.batch_norm is network.get_layer("norm")
        assert mean.positions == 36 and mean.input_quantizer is fold.output_quantizer
        assert mean.input_quantizer in network.layers


def test_a_network_that_nobody_needs_is_not_kept():
    network = _network()
    folds(network)
    alive = weakref.ref(network)
    del network
    gc.collect()
    assert alive() is None
