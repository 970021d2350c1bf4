"""Uniform noise that is the same number on every device, compiled by XLA or not.

TensorFlow and XLA draw the same random bits, but make other floats of them.
"""

from collections.abc import Sequence

import tensorflow as tf

_MANTISSA = 2**23 - 1


def stateless_uniform(shape: Sequence[int], seed: tf.Tensor) -> tf.Tensor:
    """What `tf.random.stateless_uniform` gives on a processor, in [0, 1).

    >>> seed = tf.constant([1, 2])
    >>> theirs = tf.random.stateless_uniform([5], seed, alg="philox")
    >>> bool(tf.reduce_all(stateless_uniform([5], seed) == theirs))
    True
    """
    bits = tf.random.stateless_uniform(
        shape, seed, minval=None, maxval=None, dtype=tf.int32, alg="philox"
    )
    return tf.cast(tf.bitwise.bitwise_and(bits, _MANTISSA), tf.float32) * 2.0**-23
