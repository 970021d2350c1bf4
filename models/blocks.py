"""Pieces that the networks share. Layers are named, so that overrides and reports can name them."""

from keras import layers


def conv_bn(x, filters, kernel_size, name, strides=1, relu=True, max_value=None):
    """A convolution without bias, its batch norm and, unless told otherwise, ReLU."""
    x = layers.Conv2D(
        filters, kernel_size, strides=strides, padding="same", use_bias=False, name=name
    )(x)
    return norm_relu(x, name, relu, max_value)


def depthwise_bn(x, kernel_size, name, strides=1, max_value=None):
    """A depthwise convolution, its batch norm and ReLU."""
    x = layers.DepthwiseConv2D(
        kernel_size, strides=strides, padding="same", use_bias=False, name=name
    )(x)
    return norm_relu(x, name, True, max_value)


def norm_relu(x, name, relu=True, max_value=None):
    """Batch norm and ReLU, named after the layer they belong to."""
    x = layers.BatchNormalization(name=f"{name}_bn")(x)
    return layers.ReLU(max_value, name=f"{name}_relu")(x) if relu else x


def classifier(x, classes, softmax=False, dropout=0.0):
    """Average over the image, then one logit per class (or probabilities)."""
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return head(x, classes, softmax, dropout)


def head(x, classes, softmax=False, dropout=0.0):
    """One logit per class (or probabilities) for a vector."""
    if dropout:
        x = layers.Dropout(dropout, name="head_dropout")(x)
    x = layers.Dense(classes, name="head")(x)
    return layers.Softmax(name="probabilities")(x) if softmax else x


def whole_channels(channels, multiplier, divisor=8):
    """Channels times a multiplier, rounded to a multiple of `divisor`, never 10% below.

    >>> whole_channels(16, 0.5), whole_channels(24, 0.75)
    (8, 24)
    """
    wanted = channels * multiplier
    rounded = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * wanted else rounded
