"""Rounding of activations, against the integer arithmetic that it stands for."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from udc_tf.quantize.rounding import first_roundings, round_half_up, round_twice


def _scaled_by_integers(accumulator: int, multiplier: float) -> int:
    """What TFLM computes: a doubling high product, then a division by a power of two."""
    fraction, exponent = math.frexp(multiplier)
    product = accumulator * (1 << max(exponent, 0)) * round(fraction * 2**31)
    high = (abs(product) + 2**30) >> 31
    shift = max(-exponent, 0)
    size = (high + (1 << shift >> 1)) >> shift
    return int(size if product >= 0 else -size)


@settings(max_examples=300, deadline=None)
@given(st.integers(-3000, 3000), st.floats(2**-9, 3.0))
def test_rounding_twice_is_integer_arithmetic(accumulator, multiplier):
    multiplier = float(np.float32(multiplier))
    unit = np.float32(multiplier)  # of outputs whose step is 1
    real = tf.constant([accumulator * multiplier], tf.float32)
    got = round_twice(real, tf.constant(first_roundings(np.array([unit]), 1.0)))
    between = abs(accumulator * multiplier * float(first_roundings(unit, 1.0))) % 1
    if abs(between - 0.5) > 1e-3:  # float32 cannot tell on which side of a half
        assert int(got[0]) == _scaled_by_integers(accumulator, multiplier)


def test_next_to_a_tie_two_roundings_are_not_one():
    steps = tf.constant([0.45])
    assert round_twice(steps, [8.0]).numpy() == [1.0]
    assert round_half_up(steps).numpy() == [0.0]


@pytest.mark.parametrize("multiplier", [1.0, 1.5, 700.0])
def test_a_multiplier_of_one_and_more_is_rounded_once(multiplier):
    assert first_roundings(np.array([multiplier]), 1.0) == 1.0


def test_halves_go_up():
    halves = tf.constant([-1.5, -0.5, 0.5, 1.5])
    np.testing.assert_array_equal(round_half_up(halves), [-1, 0, 1, 2])
