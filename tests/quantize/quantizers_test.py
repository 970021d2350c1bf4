"""Quantization and its gradients."""

import numpy as np
import pytest
import tensorflow as tf

from udc_tf.quantize import quantizers

_THETA = np.random.default_rng(0).normal(size=200).astype("float32")


class TestQuantize:
    @pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
    def test_values_are_integers_times_the_step(self, bits):
        levels = quantizers.integer_levels(bits)
        codes = quantizers.quantize(_THETA, bits, tf.constant(1.5)).numpy() / (1.5 / levels)
        np.testing.assert_allclose(codes, np.round(codes), atol=1e-4)
        assert np.abs(codes).max() <= levels + 1e-4
        assert len(np.unique(np.round(codes))) <= 2**bits

    def test_one_bit_has_no_zero_and_32_bits_change_nothing(self):
        assert (quantizers.quantize(tf.zeros(3), 1, tf.constant(2.0)).numpy() == 2.0).all()
        np.testing.assert_array_equal(quantizers.quantize(_THETA, 32, tf.constant(1.0)), _THETA)

    @pytest.mark.parametrize("bits", [1, 2, 4, 8])
    def test_gradients(self, bits):
        theta, r = tf.constant([-3.0, -0.2, 0.4, 3.0]), tf.constant(1.0)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([theta, r])
            total = tf.reduce_sum(quantizers.quantize(theta, bits, r) * [1.0, 2.0, 4.0, 8.0])
        inside = [1.0, 2.0, 4.0, 8.0] if bits == 1 else [0.0, 2.0, 4.0, 0.0]
        np.testing.assert_allclose(tape.gradient(total, theta), inside)
        assert np.isfinite(tape.gradient(total, r))


class TestInitialRange:
    @pytest.mark.parametrize("bits", [2, 4])
    def test_beats_the_largest_weight(self, bits):
        def error(r):
            return np.mean((quantizers.quantize(_THETA, bits, tf.constant(r)) - _THETA) ** 2)

        best = quantizers.initial_range(_THETA, bits)
        assert error(np.float32(best)) < error(np.abs(_THETA).max())

    def test_of_zeros_is_positive(self):
        assert all(quantizers.initial_range(np.zeros(5), b) > 0 for b in (1, 4, 8))
