"""Rounding of activations as integer arithmetic does it: once, or twice as TFLM rescales.

TFLM multiplies an accumulator by a 32-bit fraction in [0.5, 1) and rounds, then shifts right and
rounds again. `first_roundings` says how fine the first of the two is, `round_twice` does both.
"""

import math

import numpy as np
import tensorflow as tf


def first_roundings(units: np.ndarray, output_scale: float) -> np.ndarray:
    """Into how many parts of an output step the first rounding divides it; 1 if it is the only one.

    Args:
        units: of the accumulators, one a channel.

    >>> first_roundings(np.array([0.1, 0.3, 2.0]), 1.0).tolist()
    [8.0, 2.0, 1.0]
    """
    _, exponent = np.frexp(np.asarray(units, np.float64) / float(output_scale))
    return np.exp2(np.clip(-exponent, 0, 30))


def first_rounding_of_mean(
    input_scale: float | np.floating, output_scale: float | np.floating, count: int
) -> float:
    """The same for a mean of `count` values, whose multiplier TFLM does not bring to [0.5, 1).

    >>> first_rounding_of_mean(1.0, 0.3, 16), first_rounding_of_mean(1.0, 0.3, 1)
    (4.0, 1.0)
    """
    _, exponent = math.frexp(float(np.float32(input_scale)) / float(np.float32(output_scale)))
    halvings = count.bit_length() - 1
    return 2.0 ** min(max(halvings - exponent, 0), 30)


def round_twice(steps: tf.Tensor, fractions: tf.Tensor) -> tf.Tensor:
    """Whole numbers from real ones, by way of the fractions.

    >>> round_twice(tf.constant([0.45, 0.45, -0.5]), [8.0, 64.0, 2.0]).numpy().tolist()
    [1.0, 0.0, -1.0]
    """
    fractions = tf.cast(fractions, steps.dtype)
    return _away_from_zero(_away_from_zero(steps * fractions) / fractions)


def round_half_up(steps: tf.Tensor) -> tf.Tensor:
    """Whole numbers from real ones, as TensorFlow's fake-quant and this package's int8 codes.

    >>> round_half_up(tf.constant([0.5, -0.5, -1.6])).numpy().tolist()
    [1.0, 0.0, -2.0]
    """
    return tf.floor(steps + 0.5)


def _away_from_zero(values: tf.Tensor) -> tf.Tensor:
    return tf.sign(values) * tf.floor(tf.abs(values) + 0.5)
