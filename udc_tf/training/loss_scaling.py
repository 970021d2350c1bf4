"""Gradients of a scaled loss, for optimizers beside the one that scales it.

Under `mixed_float16` Keras wraps the weights' optimizer in one that scales the loss, so that small
gradients do not vanish, and leaves out the steps in which large ones overflow. What has optimizers
of its own, ranges and decisions, sees the same gradients.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf


def unscaled(
    optimizer: keras.optimizers.Optimizer, gradients: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The gradients of the loss itself; zeros if one of them is not finite.

    Args:
        optimizer: whose `scale_loss` scaled the loss.
        gradients: of the scaled loss.

    >>> optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=8.0)
    >>> optimizer.build([keras.Variable([1.0])])
    >>> [float(g) for g in unscaled(optimizer, [tf.constant(16.0), tf.constant(4.0)])]
    [2.0, 0.5]
    >>> [float(g) for g in unscaled(optimizer, [tf.constant(16.0), tf.constant(float("inf"))])]
    [0.0, 0.0]
    """
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or not gradients:
        return list(gradients)
    scale = tf.cast(optimizer.scale_loss(tf.constant(1.0)), tf.float32)
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in gradients])
    return [tf.where(finite, g / scale, tf.zeros_like(g)) for g in gradients]
