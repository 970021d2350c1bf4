"""The deployed number format: integers times one step, none of them wasted on the pruned zone.

    Q^(theta, b, r, beta) = Q(theta - sign(theta)*beta, b, r) + sign(theta)*beta    (UDC, section 5)

`beta` is the largest pruned |theta|, so that all levels lie where weights are. Here it is snapped
to a multiple of the step d = r / (2^(b-1) - 1), so that every weight is an integer times d:

    code = sign(theta) * (m + k),   m = round(beta / d),   k = 0 ... 2^(b-1) - 1

An int8 tensor then holds the codes as they are and deployment rounds nothing. Once a layer is
pruned m is at least 1: a kept weight is never zero, and the number of non-zeros is exactly the
mask's. With `beta = 0` this is the plain format Q. Eight bits have levels enough, and none to spare
above 127: there m is 1. One bit is r * sign(theta).
"""

import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from udc_tf.quantize.any_shape import traced_for_any_shape
from udc_tf.quantize.quantizers import integer_levels, sign

LARGEST_CODE = 127  # of an int8 weight; -128 is not used


def step_of(r: tf.Tensor, bits: int) -> tf.Tensor:
    """The step d of a range; one multiplication, so that it is the same number in every graph."""
    return r * np.float32(1 / integer_levels(bits))


def shift_of(beta: tf.Tensor, step: tf.Tensor, bits: int) -> tf.Tensor:
    """m: how many steps away from zero the first level is.

    >>> [float(shift_of(tf.constant(b), tf.constant(0.5), 4)) for b in (0.0, 0.1, 0.9, 1000.0)]
    [0.0, 1.0, 2.0, 120.0]
    """
    if bits == 1:
        return tf.zeros_like(step)
    most = float(max(LARGEST_CODE - integer_levels(bits), 1))
    return tf.where(beta > 0, tf.clip_by_value(tf.round(beta / step), 1.0, most), 0.0)


def codes_of(theta: tf.Tensor, step: tf.Tensor, shift: tf.Tensor, bits: int) -> tf.Tensor:
    """The integers, as floats, before the mask.

    >>> theta, step, shift = tf.constant([-1.6, 0.2, 0.9]), tf.constant(0.5), tf.constant(2.0)
    >>> codes_of(theta, step, shift, 2).numpy().tolist()
    [-3.0, 2.0, 2.0]
    """
    if bits == 1:
        return sign(theta)
    levels = tf.minimum(float(integer_levels(bits)), LARGEST_CODE - shift)
    above = tf.clip_by_value(tf.round(tf.abs(theta) / step) - shift, 0.0, levels)
    return sign(theta) * (shift + above)


def low_bit_kernel(
    theta: tf.Tensor,
    r: tf.Tensor,
    mask: tf.Tensor,
    beta: tf.Tensor,
    bits: int,
    *,
    pruned_gradient: float = 0.0,
    quantized: tf.Tensor | None = None,
    clip_unquantized: bool = True,
) -> tf.Tensor:
    """The kernel that is applied: codes * step * mask, exactly.

    Gradients: rounding is passed straight through; weights beyond the range get none, and the range
    gets theirs; the range also gets what rounding leaves over (as if d alone scaled the levels
    above `beta`). A pruned weight gets the share `pruned_gradient` of what it would get unpruned.

    Args:
        theta: the trained weights.
        r: the range beyond `beta`, a scalar.
        mask: 1 for weights that are kept, else 0; the shape of `theta`.
        beta: the largest pruned |theta|, or 0 for the plain format.
        bits: 1 to 8.
        pruned_gradient: 0 leaves pruned weights where they are, 1 is straight through the mask.
        quantized: random quantization: 1 where a weight is quantized in this step, 0 where it is
            `theta` itself; None for all.
        clip_unquantized: whether those are clipped to the range, as in UDC.
    """
    at_random = () if quantized is None else (quantized,)
    apply = _low_bit_kernel(bits, pruned_gradient, bool(at_random), clip_unquantized)
    return apply(theta, r, mask, beta, *at_random)


@functools.cache
def _low_bit_kernel(
    bits: int, pruned_gradient: float, at_random: bool, clip_unquantized: bool
) -> Callable[..., tf.Tensor]:
    def apply(
        theta: tf.Tensor,
        r: tf.Tensor,
        mask: tf.Tensor,
        beta: tf.Tensor,
        quantized: tf.Tensor | None = None,
    ) -> tf.Tensor:
        @tf.custom_gradient
        def kernel(
            theta: tf.Tensor, r: tf.Tensor
        ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
            step = step_of(r, bits)
            shift = shift_of(beta, step, bits)
            code = codes_of(theta, step, shift, bits)
            magnitude = tf.abs(theta)
            top = step * tf.minimum(shift + float(integer_levels(bits)), float(LARGEST_CODE))
            value = code * step
            if quantized is not None:
                rest = tf.clip_by_value(theta, -top, top) if clip_unquantized else theta
                value = tf.where(quantized > 0.5, value, rest)

            def grad(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                passes = mask if pruned_gradient == 0 else mask + pruned_gradient * (1.0 - mask)
                inside = tf.cast(magnitude <= top, theta.dtype)
                if bits == 1:
                    to_range = upstream * mask * code
                    if quantized is not None:
                        to_range *= quantized
                    return upstream * passes, tf.reduce_sum(to_range)
                open_ends = inside
                if quantized is not None and not clip_unquantized:
                    open_ends = tf.maximum(inside, 1.0 - quantized)
                left_over = (tf.abs(code) - tf.maximum(magnitude / step, shift)) / integer_levels(
                    bits
                )
                if quantized is not None:
                    left_over *= quantized
                to_range = inside * left_over + (1.0 - open_ends)
                to_range = tf.reduce_sum(upstream * mask * sign(theta) * to_range)
                return upstream * passes * open_ends, to_range

            return value * mask, grad

        return kernel(theta, r)

    return traced_for_any_shape(apply, [tf.float32] * (5 if at_random else 4))


def range_above(beta: float, old_beta: float, old_range: float) -> float:
    """The range that keeps its upper end when the pruned zone grows from `old_beta` to `beta`.

    Learning alone would be too slow for a zone that grows within a few hundred steps. Where the
    zone has overtaken the old end, what is left is in proportion to it: the tail of a bell beyond
    its last percent is about 0.15 times as wide as that limit.

    >>> range_above(1.0, 0.5, 2.0), range_above(4.0, 1.0, 2.0)
    (1.5, 0.6)
    """
    return max(old_beta + old_range - beta, 0.15 * beta)
