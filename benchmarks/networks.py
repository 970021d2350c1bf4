"""The networks of the benchmarks, and compact forms of them without a search."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers as kl

import udc_tf
from udc_tf import models
from udc_tf.compact.build import Compactor, Configuration, LayerChoice
from udc_tf.finetune.double_rounding import match_double_rounding
from udc_tf.finetune.losses import Crossentropy, gives_probabilities
from udc_tf.finetune.statistics import recalibrate
from udc_tf.finetune.whole_biases import make_biases_whole
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.layer_rules import kernel_kind
from udc_tf.graph.trace import trace
from udc_tf.layers.inventory import activation_quantizers

NETWORKS = {
    "resnet8": lambda: models.resnet8(softmax=True),
    "ds_cnn": lambda: models.ds_cnn(softmax=True),
    "mobilenet_v2": lambda: models.mobilenet_v2((64, 64, 3), classes=10, alpha=0.35),
    "autoencoder": models.autoencoder,
    "cnn28": lambda: models.small_cnn((28, 28, 1)),
}
# For the embedded digits: searches and exports in seconds.
DIGIT_NETWORKS = {
    "small_cnn": lambda: models.small_cnn((8, 8, 1), 10),
    "resnet8": lambda: models.resnet8((8, 8, 1), 10),
    "ds_cnn": lambda: models.ds_cnn((8, 8, 1), 10),
}
WIDTHS = (0.25, 0.5, 0.75, 1.0)
NONZEROS = (0.1, 0.2, 0.4, 0.7, 1.0)
_BATCH = 32


def resnet8_14(width: float) -> keras.Model:
    """MLPerf Tiny's residual network for `data.fashion_mnist_14`, `width` times as wide."""

    def conv(x, channels, size, strides=1):
        filters = max(1, round(channels * width))
        x = kl.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
        return kl.BatchNormalization(momentum=0.95)(x)

    x = inputs = keras.Input((14, 14, 1))
    x = kl.ReLU()(conv(x, 16, 3))
    for channels, strides in ((16, 1), (32, 2), (64, 2)):
        y = kl.ReLU()(conv(x, channels, 3, strides))
        y = conv(y, channels, 3)
        shortcut = x if strides == 1 else conv(x, channels, 1, strides)
        x = kl.ReLU()(kl.Add()([y, shortcut]))
    x = kl.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, kl.Dense(10, activation="softmax")(x), name="resnet8")


def uniform_compact(
    model: keras.Model, bits: int, nonzeros: float, dense_ends: bool = True
) -> keras.Model:
    """The model with one bitwidth and density in all layers.

    Args:
        dense_ends: the first and the last layer are dense with 8 bits.
    """
    kernels = [layer.name for layer in model.layers if kernel_kind(layer) is not None]
    ends = {name: {"bits": 8, "nonzeros": 1.0} for name in (kernels[0], kernels[-1])}
    return udc_tf.compact(model, bits=bits, nonzeros=nonzeros, layers=ends if dense_ends else {})


def budget_between(model: keras.Model, share: float) -> udc_tf.Flash:
    """A budget `share` of the way from the smallest to the largest file of `ethos_u55`."""
    search = udc_tf.make_searchable(model, "ethos_u55", udc_tf.Flash("64MiB"))
    (reach,) = search.reachable()
    return udc_tf.Flash(reach.smallest + share * (reach.largest - reach.smallest))


def with_statistics(model: keras.Model, rng: np.random.Generator) -> keras.Model:
    """Gives batch norms and biases values as training leaves them, a few gammas negative.

    Moving statistics are those of random inputs, so that every layer's output uses its range. A
    channel that carries hardly any signal is not blown up to full scale, as batch norm alone would:
    that would make a network of noise, in which one rounding anywhere changes everything.
    """
    norms = [layer for layer in model.layers if isinstance(layer, kl.BatchNormalization)]
    for layer in model.layers:
        if layer in norms:
            layer.momentum = 0.0
        elif getattr(layer, "bias", None) is not None:
            layer.bias.assign(rng.normal(0, 0.1, layer.bias.shape))
    data = random_inputs(model, 32, rng)
    model(data, training=True)
    for layer in norms:
        sigma = np.sqrt(layer.moving_variance.numpy())
        signal = np.minimum(sigma / (0.5 * np.median(sigma) + 1e-6), 1.0)
        signs = rng.choice([1, 1, 1, -1], sigma.shape)
        layer.gamma.assign(rng.uniform(0.5, 1.5, sigma.shape) * signs * signal)
        layer.beta.assign(rng.normal(0, 0.3, sigma.shape))
    model(data, training=True)
    return model


def random_configuration(model: keras.Model, rng: np.random.Generator, bits=None):
    """A graph, its groups and a configuration with random widths and sparsities.

    Args:
        bits: the bitwidth of all layers; None draws one per layer.
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


def trained_compact(name: str, seed: int, bits=None, steps: int = 80) -> keras.Model:
    """A compact network of a random configuration that has learned an easy task.

    Untrained, a deep network is a chaos in which one step of one input moves outputs by dozens of
    steps. The task: to tell ten smooth images under noise, or to reproduce vectors of low rank. It
    ends as finetuning does: statistics and ranges measured and held, biases in whole units.
    """
    model = random_compact(name, seed, bits)
    rng = np.random.default_rng(1000 + seed)
    for layer in model.layers:
        if isinstance(layer, kl.BatchNormalization):
            layer.momentum = 0.9
    x, y = task(model, _BATCH * steps, rng)
    loss = Crossentropy(not gives_probabilities(model)) if y.ndim == 1 else "mse"
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    model.compile(keras.optimizers.Adam(rate), loss, jit_compile=False)
    model.fit(x, y, batch_size=_BATCH, epochs=1, verbose=0)
    for quantizer in activation_quantizers(model):
        quantizer.enabled.assign(1.0)
    recalibrate(model, [x[i : i + _BATCH] for i in range(0, 8 * _BATCH, _BATCH)])
    make_biases_whole(model)
    match_double_rounding(model)
    return model


def task(model: keras.Model, count: int, rng: np.random.Generator):
    """Inputs and labels, or inputs twice."""
    shape = model.input.shape[1:]
    kinds = np.random.default_rng(0)  # the same task whatever the sample
    if len(shape) == 1:
        basis = kinds.normal(size=(4, *shape)) / 2
        x = rng.normal(size=(count, 4)) @ basis + rng.normal(scale=0.05, size=(count, *shape))
        return x.astype("float32"), x.astype("float32")
    classes = model.output.shape[-1]
    prototypes = _smooth(kinds.normal(size=(classes, 4, 4, shape[-1])), shape)
    y = rng.integers(0, classes, count)
    x = prototypes[y] + rng.normal(scale=0.3, size=(count, *shape))
    return x.astype("float32"), y


def _smooth(coarse: np.ndarray, shape) -> np.ndarray:
    return tf.image.resize(coarse.astype("float32"), shape[:2], "bicubic").numpy()


def random_inputs(model: keras.Model, count: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth random images, or random vectors."""
    shape = model.input.shape[1:]
    if len(shape) == 1:
        return rng.normal(size=(count, *shape)).astype("float32")
    fine = _smooth(rng.normal(size=(count, 4, 4, shape[-1])), shape)
    return (fine + rng.normal(scale=0.1, size=fine.shape)).astype("float32")
