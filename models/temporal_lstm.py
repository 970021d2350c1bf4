"""Convolutions over time and an LSTM behind them, for frames of sound."""

import keras
from keras import layers

from udc_tf.models.blocks import head, norm_relu


def temporal_lstm(
    input_shape: tuple[int, ...] = (49, 40),
    classes: int = 10,
    filters: tuple[int, ...] = (48, 48, 48),
    units: int = 32,
    kernel_size: int = 5,
    softmax: bool = False,
) -> keras.Model:
    """Convolutions that halve the steps leave few to the LSTM, which int8 has step by step.

    Args:
        input_shape: steps and channels of one window.
        classes: how many logits.
        filters: channels of each convolution.
        units: of the LSTM.
        kernel_size: steps that a convolution sees.
        softmax: probabilities instead of logits.

    Example:

    >>> temporal_lstm().get_layer("lstm").input.shape
    (None, 7, 48)
    """
    x = inputs = keras.Input(input_shape, name="window")
    for number, channels in enumerate(filters, start=1):
        convolution = layers.Conv1D(
            channels, kernel_size, 2, padding="same", use_bias=False, name=f"conv{number}"
        )
        x = norm_relu(convolution(x), convolution.name)
    x = layers.LSTM(units, name="lstm")(x)
    return keras.Model(inputs, head(x, classes, softmax), name="temporal_lstm")
