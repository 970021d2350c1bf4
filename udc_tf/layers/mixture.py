"""The kernels of all samples of a layer, from its one theta, in as few passes as can be.

    kernel[s] = (sum_k z[s, k] Q(theta, b_k, r_k)) * tails[s, bucket] * scale[s]

What a search step costs beyond a plain one is mostly this, so the gradient is written out:
automatic differentiation makes more than twice as many passes over [samples, weights]. With integer
codes C_k, where Q_k = step_k C_k, the sums over options are matrix products.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from udc_tf.quantize.quantizers import FLOAT_BITS, integer_levels

# One bit is sign(theta): a division by next to nothing, and a push that makes zero positive.
_NEXT_TO_NOTHING, _PUSH = 1e-30, 0.6


def mixed_kernels(
    theta: tf.Tensor,
    bits: tuple[int, ...],
    ranges: tf.Tensor,
    z: tf.Tensor,
    *,
    buckets: tf.Tensor | None = None,
    tails: tf.Tensor | None = None,
    scale: tf.Tensor | None = None,
    pruned_gradient: float = 0.0,
) -> tf.Tensor:
    """The kernel under every sample, [samples, *theta.shape].

    Args:
        theta: the shared weights.
        bits: the options; 32 stands for theta as it is.
        ranges: the range r_k of each.
        z: the weight of each option in each sample, [samples, options].
        buckets: the smallest sparsity option that keeps each weight, as floats; see
            `ranking.nested_buckets`.
        tails: what each bucket is multiplied by, [samples, buckets], as `masks.tail_sums`.
        scale: any further factor that broadcasts to the result.
        pruned_gradient: share of its gradient that a masked weight still gets.

    >>> z = tf.constant([[1.0, 0.0], [0.5, 0.5]])
    >>> mixed_kernels(tf.constant([0.3, -2.0]), (1, 2), tf.ones(2), z).numpy().tolist()
    [[1.0, -1.0], [0.5, -1.0]]
    """
    samples, shape = z.shape[0], theta.shape
    full = [samples, *shape]
    index = None if buckets is None else tf.reshape(buckets, [1, -1])
    levels = np.asarray([integer_levels(b) for b in bits], np.float32)
    no_scale = scale is None

    @tf.custom_gradient
    def mix(
        theta: tf.Tensor, ranges: tf.Tensor, z: tf.Tensor, *factors: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, ...]]]:
        tails = None if index is None else factors[0]
        scale = None if no_scale else factors[-1]
        flat = tf.reshape(theta, [1, -1])
        steps = _steps(bits, levels, ranges)
        codes = _codes(flat, bits, levels, steps)
        mixed = tf.matmul(z * steps, codes)
        members = None if index is None or tails is None else _members(index, tails.shape[-1])
        mask = None if members is None else tf.matmul(tails, members)
        masked = mixed if mask is None else mixed * mask
        kernels = tf.reshape(masked, full)
        if scale is not None:
            kernels = kernels * scale

        def grad(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            of_scale = None
            if scale is not None:
                of_scale = _sum_to(upstream * tf.reshape(masked, full), scale.shape)
                upstream = upstream * scale
            upstream = tf.reshape(upstream, [samples, -1])
            of_tails = None
            if members is not None:
                of_tails = tf.matmul(upstream * mixed, members, transpose_b=True)
                upstream = upstream * (_floored(mask, pruned_gradient) if pruned_gradient else mask)
            by_code = tf.matmul(upstream, codes, transpose_b=True)
            # A clipped weight has no gradient; its range has it instead.
            of_options = tf.matmul(z, upstream, transpose_a=True)
            inside = tf.abs(flat) <= _bounds(bits, ranges)
            of_options = tf.where(inside, of_options, tf.zeros_like(of_options))
            of_theta = tf.reshape(tf.reduce_sum(of_options, axis=0), shape)
            of_ranges = _of_ranges(bits, levels, ranges, z, by_code, of_options, flat)
            of_factors = [g for g in (of_tails, of_scale) if g is not None]
            return of_theta, of_ranges, by_code * steps, *of_factors

        return kernels, grad

    return mix(theta, ranges, z, *(f for f in (tails, scale) if f is not None))


def _steps(bits: tuple[int, ...], levels: np.ndarray, ranges: tf.Tensor) -> tf.Tensor:
    exact = np.asarray([b == FLOAT_BITS for b in bits])
    steps = ranges / levels
    return tf.where(exact, tf.ones_like(steps), steps) if exact.any() else steps


def _codes(
    flat: tf.Tensor, bits: tuple[int, ...], levels: np.ndarray, steps: tf.Tensor
) -> tf.Tensor:
    """[options, weights]: what Q_k is in units of its step."""
    floating = [b == FLOAT_BITS for b in bits]
    if all(floating):
        return tf.tile(flat, [len(bits), 1]) if len(bits) > 1 else flat
    one_bit = np.asarray([[b == 1] for b in bits])
    divisor = steps[:, None]
    if one_bit.any():
        divisor = tf.where(one_bit, tf.fill(divisor.shape, _NEXT_TO_NOTHING), divisor)
    scaled = flat / divisor
    if one_bit.any():
        scaled = scaled + one_bit.astype(np.float32) * _PUSH
    bound = levels[:, None]
    codes = tf.round(tf.minimum(tf.maximum(scaled, -bound), bound))
    if any(floating):
        codes = tf.where(np.asarray(floating)[:, None], flat, codes)
    return codes


def _bounds(bits: tuple[int, ...], ranges: tf.Tensor) -> tf.Tensor:
    """|theta| up to which an option passes the gradient on; the sign passes it everywhere."""
    unbounded = np.asarray([b in (1, FLOAT_BITS) for b in bits])
    return tf.where(unbounded, tf.fill(ranges.shape, np.float32(np.inf)), ranges)[:, None]


def _of_ranges(
    bits: tuple[int, ...],
    levels: np.ndarray,
    ranges: tf.Tensor,
    z: tf.Tensor,
    by_code: tf.Tensor,
    of_options: tf.Tensor,
    flat: tf.Tensor,
) -> tf.Tensor:
    """dQ/dr is C/levels - theta/r inside of the range and C/levels beyond."""
    along = tf.reduce_sum(z * by_code, axis=0) / levels
    back = tf.reshape(tf.matmul(of_options, flat, transpose_b=True), [-1]) / ranges
    rounds = np.asarray([b not in (1, FLOAT_BITS) for b in bits], np.float32)
    learned = np.asarray([b != FLOAT_BITS for b in bits], np.float32)
    return along * learned - back * rounds


def _members(index: tf.Tensor, buckets: int) -> tf.Tensor:
    """[buckets, weights], 1 where a weight is in a bucket: a matrix for look-ups and for sums.

    Products with it take no longer than a gather and a weighted count, and every device has them.
    """
    return tf.cast(tf.equal(index, np.arange(buckets, dtype=np.float32)[:, None]), tf.float32)


def _sum_to(values: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    axes = [i for i, (a, b) in enumerate(zip(values.shape, shape, strict=True)) if a != b]
    return tf.reduce_sum(values, axis=axes, keepdims=True)


def _floored(mask: tf.Tensor, share: float) -> tf.Tensor:
    return share + (1.0 - share) * mask
