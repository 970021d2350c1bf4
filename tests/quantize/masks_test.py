"""Nested masks: exact counts, slices, gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udc_tf.quantize import masks

_FRACTIONS = (0.01, 0.1, 0.5, 1.0)


class TestBuckets:
    @given(seed=st.integers(0, 10_000), size=st.integers(1, 300))
    def test_each_option_keeps_its_share_of_the_largest(self, seed, size):
        magnitude = np.abs(np.random.default_rng(seed).normal(size=size))
        buckets = masks.nested_buckets(magnitude, np.ones(size), _FRACTIONS)
        for k, fraction in enumerate(_FRACTIONS):
            kept = buckets <= k
            assert kept.sum() == masks.kept(fraction, size)
            np.testing.assert_array_equal(kept, masks.largest(magnitude, kept.sum()))

    def test_shares_are_those_of_the_active_slice(self):
        rng = np.random.default_rng(0)
        magnitude = np.abs(rng.normal(size=(3, 3, 8, 16)))
        magnitude[..., 4:] *= 5  # the inactive ones are the largest
        active = np.zeros((3, 3, 8, 16))
        active[:, :, :4, :4] = 1
        buckets = masks.nested_buckets(magnitude, active, _FRACTIONS)
        inside = buckets[:, :, :4, :4]
        for k, fraction in enumerate(_FRACTIONS):
            assert (inside <= k).sum() == masks.kept(fraction, inside.size)
        alone = masks.nested_buckets(magnitude[:, :, :4, :4], np.ones(inside.shape), _FRACTIONS)
        np.testing.assert_array_equal(inside, alone)

    def test_probable_weights_count_by_their_probability(self):
        magnitude = np.arange(10.0, 0.0, -1.0)
        activity = np.where(np.arange(10) % 2, 1.0, 0.5)
        buckets = masks.nested_buckets(magnitude, activity, (0.5, 1.0))
        assert activity[buckets == 0].sum() == pytest.approx(0.5 * activity.sum(), abs=1.0)

    def test_nobody_keeps_what_no_option_keeps(self):
        buckets = masks.nested_buckets(np.arange(1.0, 11.0), np.ones(10), (0.2, 0.5))
        assert (buckets == 2).sum() == 5


class TestLargest:
    def test_is_the_stable_sort_of_floats(self):
        rng = np.random.default_rng(3)
        magnitude = np.abs(rng.normal(size=3000)).astype(np.float32)
        magnitude[rng.integers(0, 3000, 900)] = magnitude[7]  # ties, and zeros
        magnitude[rng.integers(0, 3000, 300)] = 0.0
        order = np.argsort(-magnitude, kind="stable")
        for count in (1, 500, 1500, 2999):
            expected = np.zeros(3000, bool)
            expected[order[:count]] = True
            np.testing.assert_array_equal(masks.largest(magnitude, count), expected)
