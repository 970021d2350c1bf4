"""Unstructured sparsity: nested masks that keep the largest weights.

The masks of all options are nested, so one small integer a weight, its *bucket*, says all: the
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
    order = np.argsort(-magnitude, axis=None, kind="stable")
    mask = np.zeros(magnitude.size, bool)
    mask[order[:count]] = True
    return mask.reshape(magnitude.shape)


def nested_buckets(
    magnitude: np.ndarray, activity: np.ndarray, fractions: tuple[float, ...]
) -> np.ndarray:
    """The smallest option that keeps each weight; `len(fractions)` where none does.

    `activity` is the probability that a weight is there at all, given the width (and kernel)
    decisions. Each option keeps its fraction of the *active* weights, so that the density of what
    is deployed is the nominal one. With probabilities of 0 and 1 this is exactly `largest` within
    the active slice.

    >>> nested_buckets(np.array([5.0, 1.0, 3.0, 9.0]), np.array([1, 1, 1, 0]), (0.34, 1.0)).tolist()
    [0, 1, 1, 0]
    """
    order = np.argsort(-magnitude, axis=None, kind="stable")
    mass = np.cumsum(np.broadcast_to(activity, magnitude.shape).ravel()[order], dtype=np.float64)
    total = mass[-1]
    quota = np.maximum(1.0, np.round(np.asarray(fractions) * total))
    if fractions[-1] >= 1:
        quota[-1] = np.inf
    buckets = np.empty(magnitude.size, np.int8)
    buckets[order] = np.searchsorted(quota, mass - 1e-6, side="left")
    return buckets.reshape(magnitude.shape)


def tail_sums(z: tf.Tensor) -> tf.Tensor:
    """[..., options] -> [..., options + 1]: what buckets 0..K keep of a soft sample.

    >>> tail_sums(tf.constant([0.5, 0.25, 0.25])).numpy().tolist()
    [1.0, 0.5, 0.25, 0.0]
    """
    tails = tf.cumsum(z, axis=-1, reverse=True)
    return tf.concat([tails, tf.zeros_like(tails[..., :1])], axis=-1)


@tf.custom_gradient
def look_up(tails: tf.Tensor, buckets: tf.Tensor):
    """`tails[:, buckets]`, [samples, *buckets.shape].

    The gradient counts by bins: gather's own, an unsorted segment sum, takes ten times as long.
    """
    shape = buckets.shape
    flat = tf.cast(tf.reshape(buckets, [-1]), tf.int32)
    samples = tails.shape[0]
    masks = tf.reshape(tf.gather(tails, flat, axis=1), [samples, *shape])

    def grad(upstream):
        rows = tf.unstack(tf.reshape(upstream, [samples, -1]))
        bins = tails.shape[-1]
        counts = [tf.math.bincount(flat, weights=r, minlength=bins, maxlength=bins) for r in rows]
        return tf.stack(counts), None

    return masks, grad


def apply_mask(weights: tf.Tensor, mask: tf.Tensor, pruned_gradient: float) -> tf.Tensor:
    """weights * mask, where a weight that is masked out still gets a share of its gradient.

    `pruned_gradient` is that share: 0 leaves pruned weights where they are, 1 passes the gradient
    straight through the mask, so that a weight which would help grows back.
    """

    @tf.custom_gradient
    def masked(w, m):
        def grad(upstream):
            return upstream * (pruned_gradient + (1.0 - pruned_gradient) * m), upstream * w

        return w * m, grad

    return masked(weights, mask)
