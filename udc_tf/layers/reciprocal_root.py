"""The reciprocal of a square root, finite also where 8 bits round its argument to zero."""

from typing import Any

import keras
import tensorflow as tf
from keras import ops

from udc_tf.layers.kernels import Shape


@keras.saving.register_keras_serializable("udc_tf")
class ReciprocalRoot(keras.layers.Layer):
    """1 / sqrt(max(x, epsilon)), for an x that is a sum with `epsilon`.

    In real numbers that is 1 / sqrt(x). Rounded to 8 bits, x may be zero; then the integers give
    the largest value that the output has, and this layer, too, once it is cut off there.

    Args:
        epsilon: the smallest argument.

    >>> round(float(ReciprocalRoot(0.01)(ops.zeros((1, 1)))[0, 0]), 4)
    10.0
    """

    def __init__(self, epsilon: float, **kwargs: Any):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return ops.rsqrt(ops.maximum(inputs, self.epsilon))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}
