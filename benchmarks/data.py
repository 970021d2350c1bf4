"""The small task on which finetuning is measured: Fashion-MNIST at 14x14, and a ResNet8 for it."""

import gzip
import pathlib

import keras
import numpy as np
from keras import layers as kl

from udc_tf.compact.build import Compactor, Configuration, LayerChoice
from udc_tf.graph.channel_groups import ChannelGroups
from udc_tf.graph.trace import trace

DEBIAN = pathlib.Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist


def _idx(path: pathlib.Path, offset: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=offset)


def fashion_mnist_14(train_images: int):
    """((x, y), (x, y)): the first images of the training set, and the whole test set."""
    if DEBIAN.exists():
        sets = []
        for name in ("train", "t10k"):
            images = _idx(DEBIAN / f"{name}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28)
            sets.append((images, _idx(DEBIAN / f"{name}-labels-idx1-ubyte.gz", 8)))
    else:
        sets = keras.datasets.fashion_mnist.load_data()

    def pooled(images, labels):
        small = images.reshape(-1, 14, 2, 14, 2).mean((2, 4), dtype=np.float32)[..., None]
        return (small / 255 - 0.286) / 0.33, labels.astype(np.int32)

    train, test = (pooled(*s) for s in sets)
    return tuple(a[:train_images] for a in train), test


def resnet8(width: float) -> keras.Model:
    """The residual network of MLPerf Tiny with `width` times its channels."""

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


def compact(model: keras.Model, bits: int, nonzeros: float) -> keras.Model:
    """The model with one bitwidth and density; the first and last layers dense, with 8 bits."""
    graph = trace(model)
    kernels = [n.name for n in graph.nodes if isinstance(n.layer, (kl.Conv2D, kl.Dense))]
    choices = {name: LayerChoice(bits, nonzeros) for name in kernels[1:-1]}
    choices |= {name: LayerChoice(8, 1.0) for name in (kernels[0], kernels[-1])}
    return Compactor(graph, ChannelGroups(graph), Configuration(layers=choices)).build()
