"""From accumulators to output values: multiply, shift, round, move, clamp, as the NPU does."""

from __future__ import annotations

import numpy as np

from udc_tf.export.npu.faults import AccumulatorOverflowError

ROUND_TFL = 0  # as gemmlowp: rounds twice
ROUND_TRUNCATE = 1  # towards zero
ROUND_NATURAL = 2  # half up

_PRODUCT_LIMIT = 1 << 62  # of an int64, half of it left for the rounding terms


def rescale(
    values: np.ndarray,
    multiplier: np.ndarray | int,
    shift: np.ndarray | int,
    mode: int,
    input_shift: int = 0,
) -> np.ndarray:
    """`values * multiplier / 2**shift`, rounded as `mode` says.

    Args:
        values: int64 accumulators.
        multiplier: a 32-bit multiplier, or one per channel (last axis).
        shift: 0 to 63, or one per channel.
        mode: `ROUND_TFL`, `ROUND_TRUNCATE` or `ROUND_NATURAL`.
        input_shift: bits by which TFLite would have shifted the values left beforehand; it moves
            the point where the first of TFL's two roundings happens.

    Example:
        >>> rescale(np.array([5, -5]), 1, 1, ROUND_NATURAL).tolist()
        [3, -2]
        >>> rescale(np.array([5, -5]), 1, 1, ROUND_TRUNCATE).tolist()
        [2, -2]
    """
    multiplier = np.asarray(multiplier, np.int64)
    shift = np.asarray(shift, np.int64)
    check_product(values, multiplier)
    product = values * multiplier
    if mode == ROUND_TRUNCATE:
        magnitude = np.abs(product) >> shift
        return np.where(product < 0, -magnitude, magnitude)
    half = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 0)
    if mode == ROUND_TFL:
        first = np.where(shift > 31 - input_shift, np.int64(1) << (30 - input_shift), 0)
        if first.any():
            # The sign of each value decides: half + first or half - first.
            half = np.where(values < 0, half - first, half + first)
    product += half
    product >>= shift
    return product


def check_product(values: np.ndarray, factor: np.ndarray | np.integer) -> None:
    """Raises if `values * factor` might not fit the 64 bits it is computed in."""
    if not values.size:
        return
    largest = max(abs(int(values.max())), abs(int(values.min())))
    if largest * int(np.abs(factor).max(initial=0)) >= _PRODUCT_LIMIT:
        raise AccumulatorOverflowError(
            f"a value of {largest} times a scale of {int(np.abs(factor).max())} "
            "leaves the 63 bits of the scaling unit"
        )


def average_scale(count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Multiplier and shift that divide by `count`, as the NPU forms them for padded averages.

    Example:
        >>> [int(x) for x in average_scale(np.array([4]))[0]], average_scale(np.array([4]))[1]
        ([2147483649], array([33]))
    """
    table_size = int(count.max(initial=1)) + 1
    bits = np.array([max(n - 1, 0).bit_length() for n in range(table_size)], np.int64)[count]
    multiplier = ((np.int64(1) << (31 + bits)) + (np.int64(1) << bits)) // count
    return multiplier, 31 + bits
