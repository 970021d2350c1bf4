"""The dense autoencoder: MLPerf Tiny's network for anomaly detection in machine sounds."""

import keras
from keras import layers

from udc_tf.models.blocks import norm_relu


def autoencoder(
    input_shape: tuple[int, ...] = (640,),
    hidden: int = 128,
    layers_a_side: int = 4,
    bottleneck: int = 8,
) -> keras.Model:
    """Reproduces its input through a bottleneck; a large error is an anomaly.

    Args:
        input_shape: one vector (MLPerf Tiny: five frames of 128 mel bands).
        hidden: units of the wide layers.
        layers_a_side: wide layers before, and after, the bottleneck.
        bottleneck: units of the layer in the middle.

    Example:

    >>> autoencoder().output_shape
    (None, 640)
    """
    inputs = keras.Input(input_shape, name="features")
    x = inputs
    for number in range(1, layers_a_side + 1):
        x = _dense(x, hidden, f"encode{number}")
    x = _dense(x, bottleneck, "bottleneck")
    for number in range(1, layers_a_side + 1):
        x = _dense(x, hidden, f"decode{number}")
    outputs = layers.Dense(input_shape[-1], name="head")(x)
    return keras.Model(inputs, outputs, name="autoencoder")


def _dense(x: keras.KerasTensor, units: int, name: str) -> keras.KerasTensor:
    return norm_relu(layers.Dense(units, use_bias=False, name=name)(x), name)
