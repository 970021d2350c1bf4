"""What follows the weights of a search, every few steps: masks and quantization ranges."""

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from udc_tf.layers.searchable_kernels import SearchableKernel


def followers_of(
    layers: Sequence[SearchableKernel],
    probabilities: Callable[[], tf.Tensor],
    range_follow: float,
) -> tuple[list[keras.Variable], Callable[[], list[tf.Tensor]]]:
    """The variables that follow the weights, and a function that computes them afresh.

    In numpy, all in one call: sorting there takes a fifth of what `tf.sort` does.

    Args:
        layers: with theta and what follows it.
        probabilities: of all decisions, by which weights count when they are ranked.
        range_follow: how far ranges move towards what fits best; at 0 they are left out.
    """
    ranked = [layer for layer in layers if layer.buckets is not None]
    ranged = [layer for layer in layers if layer.log_ranges is not None and range_follow]
    followers = [*(la.buckets for la in ranked), *(la.log_ranges for la in ranged)]
    variables = [v for v in followers if v is not None]

    def compute(*values: np.ndarray) -> list[np.ndarray]:
        given = iter(values)
        buckets = [la.ranked_buckets(next(given), next(given)) for la in ranked]
        ranges = [la.followed_ranges(next(given), next(given), range_follow) for la in ranged]
        return [*buckets, *ranges]

    def fresh() -> list[tf.Tensor]:
        pi, read = probabilities(), tf.convert_to_tensor
        arguments = [v for la in ranked for v in (read(la.theta), la.activity(pi))]
        arguments += [v for la in ranged for v in (read(la.theta), read(la.log_ranges))]
        values = tf.numpy_function(compute, arguments, [v.dtype for v in variables])
        return [tf.ensure_shape(v, var.shape) for v, var in zip(values, variables, strict=True)]

    return variables, fresh
