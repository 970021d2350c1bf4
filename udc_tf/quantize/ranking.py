"""`masks.nested_buckets` as part of a graph, so that a training step need not leave its device.

Two ways lead to the same buckets. Sorting is what GPUs and XLA do well. A processor is several
times faster with the weights counted by the upper half of their bits: few of them then lie where
an option's limit falls, and only those need sorting.
"""

import numpy as np
import tensorflow as tf

_SLACK = 1e-6  # of masses, which are sums
_FEW = 8192  # weights that are sorted sooner than bins are gone through
_BINS, _BELOW = 2**15, 16  # by the upper 16 bits of a float, of which the sign is always 0


def sorts_here(jit_compile: bool = False) -> bool:
    """Whether sorting is the better way for the device that steps run on.

    >>> sorts_here(jit_compile=True)
    True
    """
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    return jit_compile or bool(kinds & {"GPU", "TPU"})


def nested_buckets(
    magnitude: tf.Tensor, activity: tf.Tensor, fractions: tuple[float, ...], *, sorting: bool
) -> tf.Tensor:
    """The smallest option that keeps each weight, as floats; `len(fractions)` where none does.

    Args:
        magnitude: of the weights, float32.
        activity: the probability that each is there at all, of the same shape.
        fractions: the share of active weights that each option keeps, ascending.
        sorting: sort all of them (`sorts_here`), however many there are.

    >>> magnitude, activity = tf.constant([5.0, 1.0, 3.0, 9.0]), tf.constant([1.0, 1.0, 1.0, 0.0])
    >>> nested_buckets(magnitude, activity, (0.34, 1.0), sorting=True).numpy().tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    flat = tf.reshape(magnitude, [-1])
    mass = tf.cast(tf.reshape(activity, [-1]), tf.float64)
    rank = _by_sorting if sorting or flat.shape[0] < _FEW else _by_bins
    return tf.reshape(rank(flat, mass, fractions), magnitude.shape)


def _quota(fractions: tuple[float, ...], total: tf.Tensor) -> tf.Tensor:
    """How much mass each option keeps."""
    quota = tf.maximum(np.float64(1.0), tf.round(np.asarray(fractions, np.float64) * total))
    everything = np.asarray([f >= 1 for f in fractions])
    return tf.where(everything, np.float64(np.inf), quota)


def _exceeded(mass: tf.Tensor, quota: tf.Tensor) -> tf.Tensor:
    """How many of the quota are used up before a weight up to which there is so much mass."""
    return tf.cast(tf.searchsorted(quota, mass - _SLACK, side="left"), tf.float32)


def _by_sorting(magnitude: tf.Tensor, mass: tf.Tensor, fractions: tuple[float, ...]) -> tf.Tensor:
    size = magnitude.shape[0]
    _, order = tf.math.top_k(magnitude, size)  # among equals, the first comes first
    running = tf.cumsum(tf.gather(mass, order))
    ranked = _exceeded(running, _quota(fractions, running[-1]))
    return tf.scatter_nd(order[:, None], ranked, [size])


def _by_bins(magnitude: tf.Tensor, mass: tf.Tensor, fractions: tuple[float, ...]) -> tf.Tensor:
    # The bits of floats that are not negative are in the order of the floats.
    bins = tf.bitwise.right_shift(tf.bitcast(magnitude, tf.int32), _BELOW)
    inside = tf.math.bincount(bins, weights=mass, minlength=_BINS, maxlength=_BINS)
    above = tf.cumsum(inside, reverse=True, exclusive=True)
    quota = _quota(fractions, above[0] + inside[0])
    first, last = _exceeded(above, quota), _exceeded(above + inside, quota)
    split = last > first
    buckets = tf.gather(first, bins)
    undecided = tf.where(tf.gather(split, bins))[:, 0]
    chosen = tf.gather(bins, undecided)
    _, order = tf.math.top_k(tf.gather(magnitude, undecided), tf.size(undecided))
    undecided, chosen = tf.gather(undecided, order), tf.gather(chosen, order)
    # Their running mass leaves out the bins between them that are decided as a whole.
    between = above - tf.cumsum(tf.where(split, inside, 0.0), reverse=True, exclusive=True)
    running = tf.cumsum(tf.gather(mass, undecided)) + tf.gather(between, chosen)
    return tf.tensor_scatter_nd_update(buckets, undecided[:, None], _exceeded(running, quota))
