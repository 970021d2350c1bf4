"""Batch norms with the statistics of what they get."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from udc_tf.layers.activation_quantizer import settled
from udc_tf.layers.inventory import activation_quantizers

_BATCH = 64
_LEAST = 1e-8  # the variance of a channel that is as good as constant


def measure_norms(network: keras.Model, inputs: Sequence[np.ndarray]) -> None:
    """Gives batch norms the statistics of what they get; what they compute stays the same.

    Fitting leaves each batch norm with other numbers than those of its inputs. Its gain then moves
    the mean of a channel, too, and gradient descent on all of them at once gets on slowly.
    """
    norms: list[Any] = [layer for layer in network.layers if _can_be_moved(layer)]
    if not norms:
        return
    for norm, (mean, variance) in zip(norms, _statistics(network, norms, inputs), strict=True):
        old_mean, old_variance = norm.moving_mean.numpy(), norm.moving_variance.numpy()
        alive = variance > _LEAST
        mean, variance = np.where(alive, mean, old_mean), np.where(alive, variance, old_variance)
        gain = norm.gamma.numpy() / np.sqrt(old_variance.astype(np.float64) + norm.epsilon)
        norm.gamma.assign(gain * np.sqrt(variance + norm.epsilon))
        norm.beta.assign(norm.beta.numpy() + gain * (mean - old_mean))
        norm.moving_mean.assign(mean)
        norm.moving_variance.assign(variance)


def _can_be_moved(layer: keras.layers.Layer) -> bool:
    """Whether it has a gain and an offset to make good what its statistics change."""
    return (
        isinstance(layer, keras.layers.BatchNormalization)
        and len(layer._inbound_nodes) == 1
        and layer.axis in (-1, len(layer.input.shape) - 1)
        and layer.gamma is not None
        and layer.beta is not None
    )


def _statistics(
    network: keras.Model, norms: Sequence[Any], inputs: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Mean and variance of each channel that goes into each batch norm."""
    taps = keras.Model(network.inputs, [norm.input for norm in norms])

    @tf.function(autograph=False, reduce_retracing=True)
    def sums(batch: list[tf.Tensor]) -> list[tf.Tensor]:
        found = keras.tree.flatten(taps(batch, training=False))
        rows = [tf.cast(tf.reshape(x, (-1, x.shape[-1])), tf.float64) for x in found]
        return [tf.reduce_sum([tf.ones_like(x), x, x * x], axis=1) for x in rows]

    totals = [np.float64(0.0)] * len(norms)
    with settled(activation_quantizers(network)):
        for start in range(0, len(inputs[0]), _BATCH):
            found = sums([tf.constant(x[start : start + _BATCH]) for x in inputs])
            totals = [a + x.numpy() for a, x in zip(totals, found, strict=True)]
    means = [(total[1] / total[0], total[2] / total[0]) for total in map(np.asarray, totals)]
    return [(mean, np.maximum(squares - mean**2, 0.0)) for mean, squares in means]
