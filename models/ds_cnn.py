"""DS-CNN: MLPerf Tiny's network for keyword spotting (speech commands)."""

import keras
from keras import layers

from udc_tf.models.blocks import classifier, conv_bn, depthwise_bn


def ds_cnn(
    input_shape: tuple[int, ...] = (49, 10, 1),
    classes: int = 12,
    filters: int = 64,
    blocks: int = 4,
    softmax: bool = False,
) -> keras.Model:
    """A convolution over time and frequency, then depthwise separable blocks.

    Args:
        input_shape: time steps, features per step, 1.
        classes: how many logits.
        filters: channels of all layers.
        blocks: depthwise separable blocks.
        softmax: probabilities instead of logits.

    Example:

    >>> ds_cnn().count_params()
    24332
    """
    inputs = keras.Input(input_shape, name="features")
    x = conv_bn(inputs, filters, (10, 4), "stem", strides=2)
    x = layers.Dropout(0.2, name="stem_dropout")(x)
    for number in range(1, blocks + 1):
        x = depthwise_bn(x, 3, f"block{number}_depthwise")
        x = conv_bn(x, filters, 1, f"block{number}_pointwise")
    return keras.Model(inputs, classifier(x, classes, softmax, dropout=0.4), name="ds_cnn")
