"""Convolutions over time, for frames of sound and windows of sensor data."""

import keras
from keras import layers

from udc_tf.models.blocks import head, norm_relu


def temporal_cnn(
    input_shape: tuple[int, ...] = (49, 40),
    classes: int = 10,
    filters: tuple[int, ...] = (64, 64, 96, 96),
    kernel_size: int = 5,
    first_strides: int = 1,
    softmax: bool = False,
) -> keras.Model:
    """Convolutions one after the other, each after the first halving the steps.

    Args:
        input_shape: steps and channels of one window.
        classes: how many logits.
        filters: channels of each convolution.
        kernel_size: steps that a convolution sees.
        first_strides: of the first convolution; more for long windows of one channel.
        softmax: probabilities instead of logits.

    Example:

    >>> temporal_cnn().count_params()
    112330
    """
    x = inputs = keras.Input(input_shape, name="window")
    for number, channels in enumerate(filters, start=1):
        name, strides = f"conv{number}", first_strides if number == 1 else 2
        convolution = layers.Conv1D(
            channels, kernel_size, strides=strides, padding="same", use_bias=False, name=name
        )
        x = norm_relu(convolution(x), name)
    x = layers.GlobalAveragePooling1D(name="pool")(x)
    return keras.Model(inputs, head(x, classes, softmax, dropout=0.2), name="temporal_cnn")
