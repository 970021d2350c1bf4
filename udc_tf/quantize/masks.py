"""Unstructured sparsity: nested masks that keep the largest weights.

The masks of all options are nested, so one small integer per weight, its *bucket*, says all: the
smallest option that still keeps the weight. The mask of a soft sample z is then a look-up of the
tail sums of z.
"""

import numpy as np
import tensorflow as tf


def kept(fraction: float, weights: int) -> int:
    """How many of `weights` a fraction of non-zeros keeps; never none.

    >>> kept(0.01, 1000), kept(0.01, 9)
    (10, 1)
    """
    return max(1, round(fraction * weights))


def largest(magnitude: np.ndarray, count: int) -> np.ndarray:
    """Boolean mask of the `count` largest entries; among equals, the first.

    >>> largest(np.array([3.0, 1.0, 3.0, 2.0]), 2).tolist()
    [True, False, True, False]
    """
    order = _descending(magnitude)
    mask = np.zeros(magnitude.size, bool)
    mask[order[:count]] = True
    return mask.reshape(magnitude.shape)


def _descending(magnitude: np.ndarray) -> np.ndarray:
    """A stable order from the largest down.

    The bits of floats that are not negative sort as integers do, and numpy sorts 16-bit integers by
    radix: two of those take a fifth of one stable sort of floats.
    """
    keys = ~np.ascontiguousarray(magnitude, np.float32).ravel().view(np.uint32)
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    return order[np.argsort((keys >> 16).astype(np.uint16)[order], kind="stable")]


def nested_buckets(
    magnitude: np.ndarray, activity: np.ndarray, fractions: tuple[float, ...]
) -> np.ndarray:
    """The smallest option that keeps each weight; `len(fractions)` where none does.

    `activity` is the probability that a weight is there at all, given the width (and kernel)
    decisions. Each option keeps its fraction of the *active* weights, so that what is
    deployed has the nominal share of nonzeros. With probabilities of 0 and 1 this is exactly
    `largest` within the active slice.

    >>> nested_buckets(np.array([5.0, 1.0, 3.0, 9.0]), np.array([1, 1, 1, 0]), (0.34, 1.0)).tolist()
    [0, 1, 1, 0]
    """
    order = _descending(magnitude)
    mass = np.cumsum(np.broadcast_to(activity, magnitude.shape).ravel()[order], dtype=np.float64)
    total = mass[-1]
    quota = np.maximum(1.0, np.round(np.asarray(fractions) * total))
    if fractions[-1] >= 1:
        quota[-1] = np.inf
    buckets = np.empty(magnitude.size, np.int32)
    buckets[order] = np.searchsorted(quota, mass - 1e-6, side="left")
    return buckets.reshape(magnitude.shape)


def tail_sums(z: tf.Tensor) -> tf.Tensor:
    """[..., options] -> [..., options + 1]: what buckets 0..K keep of a soft sample.

    >>> tail_sums(tf.constant([0.5, 0.25, 0.25])).numpy().tolist()
    [1.0, 0.5, 0.25, 0.0]
    """
    tails = tf.cumsum(z, axis=-1, reverse=True)
    return tf.concat([tails, tf.zeros_like(tails[..., :1])], axis=-1)
