"""Rounding: against the definitions, in Python's own integers."""

import numpy as np
import pytest

from udc_tf.export.npu import AccumulatorOverflowError, scaling


def _gemmlowp(value: int, multiplier: int, shift: int) -> int:
    """Doubling high multiplication, then a division by a power of two: both round."""
    product = value * multiplier
    nudge = 1 << 30 if product >= 0 else 1 - (1 << 30)
    high = abs(product + nudge) >> 31
    high = high if product + nudge >= 0 else -high
    exponent = shift - 31
    if exponent <= 0:
        return high << -exponent
    mask = (1 << exponent) - 1
    threshold = (mask >> 1) + (high < 0)
    return (high >> exponent) + ((high & mask) > threshold)


class TestRescale:
    def test_tfl_is_gemmlowps_double_rounding(self):
        rng = np.random.default_rng(0)
        values = rng.integers(-(1 << 24), 1 << 24, 4000)
        for shift in (31, 32, 36, 40, 47):
            multiplier = int(rng.integers(1 << 30, 1 << 31))
            got = scaling.rescale(values, multiplier, shift, scaling.ROUND_TFL)
            want = [_gemmlowp(int(v), multiplier, shift) for v in values]
            np.testing.assert_array_equal(got, want)

    def test_tfl_at_exact_halves(self):
        values = np.array([-6, -2, 2, 6])  # times 2^30 / 2^32: halves
        got = scaling.rescale(values, 1 << 30, 32, scaling.ROUND_TFL)
        assert got.tolist() == [_gemmlowp(int(v), 1 << 30, 32) for v in values] == [-2, -1, 1, 2]

    def test_natural_rounds_half_up_and_truncate_towards_zero(self):
        values = np.array([-3, -1, 0, 1, 3])
        assert scaling.rescale(values, 1, 1, scaling.ROUND_NATURAL).tolist() == [-1, 0, 0, 1, 2]
        assert scaling.rescale(values, 1, 1, scaling.ROUND_TRUNCATE).tolist() == [-1, 0, 0, 0, 1]

    def test_scales_may_differ_by_channel(self):
        values = np.array([[100, 100], [-100, -100]])
        got = scaling.rescale(values, np.array([1, 3]), np.array([0, 2]), scaling.ROUND_NATURAL)
        assert got.tolist() == [[100, 75], [-100, -75]]

    def test_a_product_beyond_63_bits_is_an_error(self):
        with pytest.raises(AccumulatorOverflowError, match="leaves the 63 bits"):
            scaling.rescale(np.array([1 << 40]), 1 << 31, 40, scaling.ROUND_TFL)


class TestAverageScale:
    def test_divides_by_every_count_halves_away_from_zero_as_tflm(self):
        for count in range(1, 65):
            multiplier, shift = scaling.average_scale(np.array([count]))
            sums = np.arange(-128 * count, 127 * count + 1, max(1, count // 3))
            got = scaling.rescale(sums, multiplier, shift, scaling.ROUND_NATURAL)
            want = np.sign(sums) * ((2 * np.abs(sums) + count) // (2 * count))
            np.testing.assert_array_equal(got, want)
