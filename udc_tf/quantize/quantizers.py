"""Uniform symmetric weight quantization with a learned range.

    Q(theta, b, r) = d * round(clip(theta, -r, r) / d),   d = r / (2^(b-1) - 1)     for b > 1
    Q(theta, 1, r) = r * sign(theta)
    Q(theta, 32, r) = theta

(UDC, section 3; for one bit the range is kept, so that a layer without batch norm works too.)
Rounding passes the gradient straight through; clipped weights get none, the range gets theirs.
"""

import numpy as np
import tensorflow as tf

FLOAT_BITS = 32
_SMALLEST_RANGE = 1e-8
_CANDIDATES = np.linspace(0.1, 1.0, 37, dtype=np.float32)  # of the largest weight
_SAMPLE = 1024  # weights decide the optimum; all of a large layer would only cost time


def integer_levels(bits: int) -> int:
    """Largest integer code of a `bits`-wide weight: 1, 1, 3, 7, ..., 127.

    >>> [integer_levels(b) for b in (1, 2, 4, 8)]
    [1, 1, 7, 127]
    """
    return max(2 ** (bits - 1) - 1, 1)


def sign(x: tf.Tensor) -> tf.Tensor:
    """+1 for zero and above, else -1: a one-bit weight is never zero."""
    return tf.where(x >= 0, tf.ones_like(x), -tf.ones_like(x))


def straight_through(forward: tf.Tensor, backward: tf.Tensor) -> tf.Tensor:
    """The value of `forward` with the gradient of `backward`."""
    return backward + tf.stop_gradient(forward - backward)


@tf.custom_gradient
def round_straight_through(x: tf.Tensor) -> tuple:
    """round(x) with the gradient of x, in one pass over the weights."""
    return tf.round(x), lambda upstream: upstream


def quantize(theta: tf.Tensor, bits: int, r: tf.Tensor) -> tf.Tensor:
    """Quantizes `theta` to `bits` over the range `r`.

    >>> quantize(tf.constant([-2.0, 0.2, 0.4]), 2, tf.constant(1.0)).numpy().tolist()
    [-1.0, 0.0, 0.0]
    """
    if bits == FLOAT_BITS:
        return theta
    if bits == 1:
        return sign(theta) * r + (theta - tf.stop_gradient(theta))
    step = r / integer_levels(bits)
    scaled = tf.clip_by_value(theta, -r, r) / step
    return step * round_straight_through(scaled)


def initial_range(theta: np.ndarray, bits: int) -> float:
    """The range with the least squared error on `theta`, by a small grid; mean |theta| for one bit.

    >>> round(initial_range(np.array([-1.0, 1.0, 0.5, -0.5]), 1), 2)
    0.75
    """
    magnitude = np.abs(np.asarray(theta, np.float32)).ravel()
    if bits == 1:
        return max(float(magnitude.mean()), _SMALLEST_RANGE)
    largest = max(float(magnitude.max()), _SMALLEST_RANGE)
    if bits >= 8:
        return largest
    candidates = np.float32(largest) * _CANDIDATES
    steps = candidates[:, None] / integer_levels(bits)
    sample = magnitude[:: max(1, magnitude.size // _SAMPLE)]
    clipped = np.minimum(sample[None], candidates[:, None])
    error = np.round(clipped / steps) * steps - sample[None]
    return float(candidates[np.einsum("cw,cw->c", error, error).argmin()])


def initial_ranges(theta: tf.Tensor, bits: tuple[int, ...]) -> tf.Tensor:
    """`initial_range` of every option, as part of a graph.

    >>> initial_ranges(tf.constant([-1.0, 1.0, 0.5, -0.5]), (1, 8)).numpy().tolist()
    [0.75, 1.0]
    """
    magnitude = tf.abs(tf.reshape(theta, [-1]))
    largest = tf.maximum(tf.reduce_max(magnitude), _SMALLEST_RANGE)
    mean = tf.maximum(tf.reduce_mean(magnitude), _SMALLEST_RANGE)
    few = [b for b in bits if 1 < b < 8]
    fits = iter(tf.unstack(_best_candidates(magnitude, largest, few)) if few else ())
    return tf.stack([mean if b == 1 else largest if b >= 8 else next(fits) for b in bits])


def _best_candidates(magnitude: tf.Tensor, largest: tf.Tensor, bits: list[int]) -> tf.Tensor:
    levels = np.asarray([integer_levels(b) for b in bits], np.float32)[:, None, None]
    candidates = largest * _CANDIDATES
    steps = candidates[None, :, None] / levels
    sample = magnitude[:: max(1, magnitude.shape[0] // _SAMPLE)]
    clipped = tf.minimum(sample[None], candidates[:, None])[None]
    error = tf.round(clipped / steps) * steps - sample
    return tf.gather(candidates, tf.argmin(tf.reduce_sum(tf.square(error), axis=-1), axis=-1))
