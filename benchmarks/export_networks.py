"""The five networks of the export benchmarks, and random configurations of them."""

import keras
import numpy as np
from keras import layers as kl

from udc_tf.channels import ChannelGroups
from udc_tf.compaction import Compactor, Configuration, LayerChoice
from udc_tf.conversion import kernel_kind
from udc_tf.graph import trace


def resnet8() -> keras.Model:
    def convolve(x, filters, size=3, strides=1, activate=True):
        x = kl.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
        x = kl.BatchNormalization()(x)
        return kl.ReLU()(x) if activate else x

    inputs = keras.Input((32, 32, 3))
    x = convolve(inputs, 16)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        y = convolve(convolve(x, filters, strides=strides), filters, activate=False)
        if strides > 1:
            x = kl.Conv2D(filters, 1, strides=strides, padding="same")(x)
        x = kl.ReLU()(kl.Add()([x, y]))
    x = kl.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, kl.Dense(10, activation="softmax")(x), name="resnet8")


def ds_cnn() -> keras.Model:
    inputs = keras.Input((49, 10, 1))
    x = kl.Conv2D(64, (10, 4), strides=2, padding="same", use_bias=False)(inputs)
    x = kl.ReLU()(kl.BatchNormalization()(x))
    for _ in range(4):
        x = kl.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
        x = kl.ReLU()(kl.BatchNormalization()(x))
        x = kl.Conv2D(64, 1, use_bias=False)(x)
        x = kl.ReLU()(kl.BatchNormalization()(x))
    x = kl.AveragePooling2D((25, 5))(x)
    return keras.Model(inputs, kl.Dense(12, activation="softmax")(kl.Flatten()(x)), name="ds_cnn")


def mobilenet_v2_like() -> keras.Model:
    def batch_norm(x, activate=True):
        x = kl.BatchNormalization()(x)
        return kl.ReLU(6.0)(x) if activate else x

    inputs = keras.Input((48, 48, 3))
    x = batch_norm(kl.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(inputs))
    for filters, strides in ((16, 1), (24, 2), (24, 1), (32, 2), (32, 1)):
        source = x
        x = batch_norm(kl.Conv2D(4 * x.shape[-1], 1, use_bias=False)(x))
        if strides > 1:
            x = kl.ZeroPadding2D(((0, 1), (0, 1)))(x)
        padding = "valid" if strides > 1 else "same"
        x = kl.DepthwiseConv2D(3, strides=strides, padding=padding, use_bias=False)(x)
        x = batch_norm(x)
        x = batch_norm(kl.Conv2D(filters, 1, use_bias=False)(x), activate=False)
        if strides == 1 and source.shape[-1] == filters:
            x = kl.Add()([source, x])
    x = batch_norm(kl.Conv2D(96, 1, use_bias=False)(x))
    x = kl.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, kl.Dense(10)(x), name="mobilenet_v2_like")


def autoencoder() -> keras.Model:
    inputs = keras.Input((640,))
    x = inputs
    for units in (128, 128, 128, 8, 128, 128, 128):
        x = kl.ReLU()(kl.BatchNormalization()(kl.Dense(units)(x)))
    return keras.Model(inputs, kl.Dense(640)(x), name="autoencoder")


def cnn28() -> keras.Model:
    inputs = keras.Input((28, 28, 1))
    x = kl.Conv2D(16, 3, activation="relu")(inputs)
    x = kl.MaxPooling2D()(x)
    x = kl.Conv2D(32, 3, activation="relu")(x)
    x = kl.MaxPooling2D()(x)
    x = kl.Dense(64, activation="relu")(kl.Flatten()(x))
    return keras.Model(inputs, kl.Dense(10, activation="softmax")(x), name="cnn28")


NETWORKS = {
    build.__name__: build for build in (resnet8, ds_cnn, mobilenet_v2_like, autoencoder, cnn28)
}
WIDTHS = (0.25, 0.5, 0.75, 1.0)
NONZEROS = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)


def with_statistics(model: keras.Model, rng: np.random.Generator) -> keras.Model:
    """Gives batch norms and biases values as training leaves them, a few gammas negative.

    Moving statistics are those of random inputs, so that every layer's output uses its range.
    """
    for layer in model.layers:
        if isinstance(layer, kl.BatchNormalization):
            channels = layer.gamma.shape
            layer.gamma.assign(
                rng.uniform(0.3, 1.5, channels) * rng.choice([1, 1, 1, -1], channels)
            )
            layer.beta.assign(rng.normal(0, 0.3, channels))
            layer.momentum = 0.0
        elif getattr(layer, "bias", None) is not None:
            layer.bias.assign(rng.normal(0, 0.1, layer.bias.shape))
    model(random_inputs(model, 32, rng), training=True)
    return model


def random_configuration(model: keras.Model, rng: np.random.Generator, bits=None):
    """A graph, its groups and a configuration with random widths and sparsities.

    Args:
        bits: the bitwidth of all layers; None draws one a layer.
    """
    graph = trace(model)
    groups = ChannelGroups(graph)
    channels = {
        g.name: max(1, round(g.channels * rng.choice(WIDTHS)))
        for g in groups.groups
        if g.frozen is None
    }
    layers = {
        node.name: LayerChoice(
            bits=int(bits or rng.choice([1, 2, 4, 8])), nonzeros=float(rng.choice(NONZEROS))
        )
        for node in graph.nodes
        if kernel_kind(node.layer) is not None
    }
    return graph, groups, Configuration(channels=channels, layers=layers)


def random_compact(name: str, seed: int, bits=None) -> keras.Model:
    """A compact network of a random configuration, with random weights."""
    keras.utils.set_random_seed(seed)
    rng = np.random.default_rng(seed)
    model = Compactor(*random_configuration(NETWORKS[name](), rng, bits)).build()
    for layer in model.layers:
        if hasattr(layer, "refresh_mask"):
            layer.initialize_range()
            layer.refresh_mask()
    return with_statistics(model, rng)


def random_inputs(model: keras.Model, count: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth random images, or random vectors."""
    shape = model.input.shape[1:]
    if len(shape) == 1:
        return rng.normal(size=(count, *shape)).astype("float32")
    coarse = rng.normal(size=(count, 4, 4, shape[-1])).astype("float32")
    import tensorflow as tf

    fine = tf.image.resize(coarse, shape[:2], "bicubic").numpy()
    return (fine + rng.normal(scale=0.1, size=fine.shape)).astype("float32")
