"""Rounding of activations, against the integer arithmetic that it stands for."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from udc_tf.quantize import rounding


def _as_integers(accumulator: int, multiplier: float) -> int:
    """An accumulator rescaled as TFLM does it: a 31-bit fraction, then a shift."""
    fraction, exponent = np.frexp(multiplier)
    product = accumulator * round(float(fraction) * 2**31)
    half = 2**30
    high = (product + half) // 2**31 if product >= 0 else -((half - 1 - product) // 2**31)
    shift = -int(exponent)
    return int(np.sign(high)) * ((abs(high) + (1 << shift >> 1)) >> shift)


class TestRoundTwice:
    @settings(deadline=None, max_examples=60, derandomize=True)
    @given(st.integers(-30_000, 30_000), st.floats(2**-8, 0.99))
    def test_equals_integer_arithmetic(self, accumulator, multiplier):
        fractions = rounding.first_roundings(np.array([multiplier]), 1.0)
        steps = tf.constant([accumulator * multiplier], tf.float64)
        ours = int(rounding.round_twice(steps, fractions)[0])
        assert ours == _as_integers(accumulator, multiplier)

    def test_differs_from_one_rounding_next_to_a_tie(self):
        steps = tf.constant([0.45])
        assert rounding.round_twice(steps, [8.0]).numpy() == [1.0]
        assert rounding.round_half_up(steps).numpy() == [0.0]


@pytest.mark.parametrize("multiplier", [1.0, 1.5, 700.0])
def test_a_multiplier_of_one_and_more_is_rounded_once(multiplier):
    assert rounding.first_roundings(np.array([multiplier]), 1.0) == 1.0


def test_halves_go_up():
    halves = tf.constant([-1.5, -0.5, 0.5, 1.5])
    np.testing.assert_array_equal(rounding.round_half_up(halves), [-1, 0, 1, 2])
