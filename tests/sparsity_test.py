"""Nested masks: exact counts, slices, gradients."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from udc_tf import sparsity

_FRACTIONS = (0.01, 0.1, 0.5, 1.0)


class TestBuckets:
    @given(seed=st.integers(0, 10_000), size=st.integers(1, 300))
    def test_each_option_keeps_its_share_of_the_largest(self, seed, size):
        magnitude = np.abs(np.random.default_rng(seed).normal(size=size))
        buckets = sparsity.nested_buckets(magnitude, np.ones(size), _FRACTIONS)
        for k, fraction in enumerate(_FRACTIONS):
            kept = buckets <= k
            assert kept.sum() == sparsity.kept(fraction, size)
            np.testing.assert_array_equal(kept, sparsity.largest(magnitude, kept.sum()))

    def test_shares_are_those_of_the_active_slice(self):
        rng = np.random.default_rng(0)
        magnitude = np.abs(rng.normal(size=(3, 3, 8, 16)))
        magnitude[..., 4:] *= 5  # the inactive ones are the largest
        active = np.zeros((3, 3, 8, 16))
        active[:, :, :4, :4] = 1
        buckets = sparsity.nested_buckets(magnitude, active, _FRACTIONS)
        inside = buckets[:, :, :4, :4]
        for k, fraction in enumerate(_FRACTIONS):
            assert (inside <= k).sum() == sparsity.kept(fraction, inside.size)
        alone = sparsity.nested_buckets(magnitude[:, :, :4, :4], np.ones(inside.shape), _FRACTIONS)
        np.testing.assert_array_equal(inside, alone)

    def test_probable_weights_count_by_their_probability(self):
        magnitude = np.arange(10.0, 0.0, -1.0)
        activity = np.where(np.arange(10) % 2, 1.0, 0.5)
        buckets = sparsity.nested_buckets(magnitude, activity, (0.5, 1.0))
        assert activity[buckets == 0].sum() == pytest.approx(0.5 * activity.sum(), abs=1.0)

    def test_nobody_keeps_what_no_option_keeps(self):
        buckets = sparsity.nested_buckets(np.arange(1.0, 11.0), np.ones(10), (0.2, 0.5))
        assert (buckets == 2).sum() == 5


class TestLookUp:
    def test_value_and_gradient_are_those_of_a_sum_of_masks(self):
        rng = np.random.default_rng(0)
        buckets = tf.constant(rng.integers(0, 5, (4, 6)), tf.int8)
        z = tf.constant(rng.dirichlet(np.ones(4), size=3), tf.float32)
        masks = tf.stack([tf.cast(buckets <= k, tf.float32) for k in range(4)])
        weight = tf.constant(rng.normal(size=(3, 4, 6)), tf.float32)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(z)
            fast = tf.reduce_sum(sparsity.look_up(sparsity.tail_sums(z), buckets) * weight)
            slow = tf.reduce_sum(tf.einsum("sk,kij->sij", z, masks) * weight)
        np.testing.assert_allclose(fast, slow, rtol=1e-5)
        np.testing.assert_allclose(
            tape.gradient(fast, z), tape.gradient(slow, z), rtol=1e-4, atol=1e-5
        )


class TestApplyMask:
    @pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
    def test_pruned_weights_get_their_share(self, share):
        weights, mask = tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0, 0.0, 0.5])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([weights, mask])
            total = tf.reduce_sum(sparsity.apply_mask(weights, mask, share))
        assert float(total) == 2.5
        expected = share + (1 - share) * mask.numpy()
        np.testing.assert_allclose(tape.gradient(total, weights), expected)
        np.testing.assert_allclose(tape.gradient(total, mask), weights)
