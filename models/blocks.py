"""Pieces that the networks share. Layers are named, so that overrides and reports can name them."""

import keras
from keras import layers


def conv_bn(
    x: keras.KerasTensor,
    filters: int,
    kernel_size: int | tuple[int, int],
    name: str,
    strides: int = 1,
    relu: bool = True,
    max_value: float | None = None,
) -> keras.KerasTensor:
    """A convolution without bias, its batch norm and, unless told otherwise, ReLU."""
    x = layers.Conv2D(
        filters, kernel_size, strides=strides, padding="same", use_bias=False, name=name
    )(x)
    return norm_relu(x, name, relu, max_value)


def depthwise_bn(
    x: keras.KerasTensor,
    kernel_size: int,
    name: str,
    strides: int = 1,
    max_value: float | None = None,
) -> keras.KerasTensor:
    """A depthwise convolution, its batch norm and ReLU."""
    x = layers.DepthwiseConv2D(
        kernel_size, strides=strides, padding="same", use_bias=False, name=name
    )(x)
    return norm_relu(x, name, True, max_value)


def norm_relu(
    x: keras.KerasTensor, name: str, relu: bool = True, max_value: float | None = None
) -> keras.KerasTensor:
    """Batch norm and ReLU, named after the layer they belong to."""
    x = layers.BatchNormalization(name=f"{name}_bn")(x)
    return layers.ReLU(max_value, name=f"{name}_relu")(x) if relu else x


def classifier(
    x: keras.KerasTensor, classes: int, softmax: bool = False, dropout: float = 0.0
) -> keras.KerasTensor:
    """Average over the image, then one logit per class (or probabilities)."""
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return head(x, classes, softmax, dropout)


def head(
    x: keras.KerasTensor, classes: int, softmax: bool = False, dropout: float = 0.0
) -> keras.KerasTensor:
    """One logit per class (or probabilities) for a vector."""
    if dropout:
        x = layers.Dropout(dropout, name="head_dropout")(x)
    x = layers.Dense(classes, name="head")(x)
    return layers.Softmax(name="probabilities")(x) if softmax else x


def whole_channels(channels: int, multiplier: float, divisor: int = 8) -> int:
    """Channels times a multiplier, rounded to a multiple of `divisor`, never 10% below.

    >>> whole_channels(16, 0.5), whole_channels(24, 0.75)
    (8, 24)
    """
    wanted = channels * multiplier
    rounded = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * wanted else rounded
