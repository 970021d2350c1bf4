"""Weights of the compact network: what is trained is what is deployed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.layers import run_layer_test
from udc_tf.layers.compact_kernels import (
    CompactConv2D,
    CompactConv2DTranspose,
    CompactDense,
    CompactDepthwiseConv2D,
    WeightTraining,
)
from udc_tf.quantize import number_format, quantizers

KINDS = {
    "conv": lambda **kw: CompactConv2D(6, 3, padding="same", **kw),
    "pointwise": lambda **kw: CompactConv2D(16, 1, **kw),
    "depthwise": lambda **kw: CompactDepthwiseConv2D(3, padding="same", **kw),
    "transposed": lambda **kw: CompactConv2DTranspose(5, 3, strides=2, **kw),
    "dense": lambda **kw: CompactDense(20, **kw),
}


SHAPES = {
    "conv": (8, 8, 6),
    "pointwise": (8, 8, 16),
    "depthwise": (8, 8, 8),
    "transposed": (17, 17, 5),
    "dense": (8, 8, 20),
}


def built(kind, **kwargs):
    layer = KINDS[kind](kernel_initializer=keras.initializers.RandomNormal(seed=3), **kwargs)
    layer.build((None, 8, 8, 8))
    layer.initialize_range()
    return layer


class TestNumberFormat:
    def test_without_beta_it_is_the_plain_format(self):
        theta = tf.random.stateless_normal((1000,), (1, 2))
        one, zero, r = tf.ones(1000), tf.constant(0.0), tf.constant(1.3)
        for bits in (1, 2, 3, 4, 8):
            ours = number_format.low_bit_kernel(theta, r, one, zero, bits)
            np.testing.assert_allclose(ours, quantizers.quantize(theta, bits, r), atol=1e-6)

    def test_gradients_without_beta_are_those_of_the_plain_format(self):
        theta = tf.random.stateless_normal((1000,), (1, 2))
        upstream = tf.random.stateless_normal((1000,), (3, 4))
        one, zero, r = tf.ones(1000), tf.constant(0.0), tf.constant(1.3)
        for bits in (1, 2, 4, 8):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch((theta, r))
                ours = number_format.low_bit_kernel(theta, r, one, zero, bits)
                plain = quantizers.quantize(theta, bits, r)
            got = tape.gradient(ours, (theta, r), upstream)
            wanted = tape.gradient(plain, (theta, r), upstream)
            np.testing.assert_allclose(got[0], wanted[0], atol=1e-6)
            np.testing.assert_allclose(got[1], wanted[1], rtol=1e-3, atol=1e-3)

    @given(
        bits=st.integers(2, 8),
        r=st.floats(1e-3, 1e3),
        beta=st.floats(1e-4, 1e3),
        seed=st.integers(0, 1000),
    )
    @settings(max_examples=60, deadline=None)
    def test_levels_fit_int8_and_lie_beyond_the_pruned_zone(self, bits, r, beta, seed):
        theta = tf.random.stateless_normal((300,), (seed, 2)) * (beta + r)
        step = number_format.step_of(tf.constant(r, tf.float32), bits)
        shift = number_format.shift_of(tf.constant(beta, tf.float32), step, bits)
        codes = number_format.codes_of(theta, step, shift, bits).numpy()
        assert np.abs(codes).min() >= shift >= 1
        assert np.abs(codes).max() <= 127
        assert len(np.unique(codes)) <= 2**bits
        np.testing.assert_array_equal(np.sign(codes), np.where(theta >= 0, 1, -1))

    def test_error_is_half_a_step_inside_the_levels(self):
        theta, beta, r = tf.linspace(1.0, 1.9, 500), tf.constant(1.0), tf.constant(1.0)
        kernel = number_format.low_bit_kernel(theta, r, tf.ones(500), beta, 4)
        assert np.abs(kernel - theta).max() <= 0.5 / 7 + 1e-6

    @pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
    def test_pruned_weights_get_their_share_of_the_gradient(self, share):
        theta = tf.constant([0.1, 0.5, -0.2, -0.9])
        mask, beta, r = tf.constant([0.0, 1, 0, 1]), tf.constant(0.2), tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch(theta)
            kernel = number_format.low_bit_kernel(theta, r, mask, beta, 4, pruned_gradient=share)
        np.testing.assert_allclose(tape.gradient(kernel, theta), [share, 1, share, 1])
        assert kernel.numpy()[0] == 0
        assert kernel.numpy()[2] == 0

    def test_random_quantization_mixes_levels_and_clipped_weights(self):
        theta, r = tf.constant([0.33, 0.33, 3.0, 3.0]), tf.constant(1.0)
        drawn, one, zero = tf.constant([1.0, 0, 1, 0]), tf.ones(4), tf.constant(0.0)
        clipped = number_format.low_bit_kernel(theta, r, one, zero, 2, quantized=drawn)
        np.testing.assert_allclose(clipped, [0.0, 0.33, 1.0, 1.0])
        original = number_format.low_bit_kernel(
            theta, r, one, zero, 2, quantized=drawn, clip_unquantized=False
        )
        np.testing.assert_allclose(original, [0.0, 0.33, 1.0, 3.0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [1, 2, 4, 8])
class TestDeployedWeights:
    def test_codes_times_step_are_the_kernel_of_the_forward_pass(self, kind, bits):
        layer = built(kind, bits=bits, nonzeros=0.3)
        layer.refresh_mask(shifted=True)
        integers = layer.integer_kernel()
        forward = tf.function(lambda: layer.effective_kernel(training=False))()
        codes = integers.codes.astype(np.float32)
        np.testing.assert_array_equal(codes * np.float32(integers.step), forward)
        assert integers.nonzeros == layer.target_nonzeros
        assert len(np.unique(integers.codes[integers.codes != 0])) <= 2**bits

    def test_without_pruning_it_is_the_plain_format(self, kind, bits):
        layer = built(kind, bits=bits)
        layer.refresh_mask(shifted=True)
        assert layer.beta.numpy() == 0
        plain = quantizers.quantize(tf.convert_to_tensor(layer.theta), bits, layer.range)
        np.testing.assert_allclose(layer.effective_kernel(training=False), plain, atol=1e-6)


class TestCompactKernel:
    @pytest.mark.parametrize("kind", KINDS)
    def test_as_keras_layers(self, kind, tmp_path):
        initializer = keras.initializers.RandomNormal(seed=3)
        layer = KINDS[kind](bits=4, nonzeros=0.5, kernel_initializer=initializer)
        run_layer_test(layer, (8, 8, 8), SHAPES[kind], tmp_path, trainable=3, non_trainable=5)

    def test_mask_follows_theta(self):
        layer = built("dense", bits=4, nonzeros=0.25)
        layer.refresh_mask(shifted=True)
        gone = tuple(np.argwhere(layer.mask.numpy() == 0)[0])
        theta = layer.theta.numpy()
        theta[gone] = 10.0
        layer.theta.assign(theta)
        layer.refresh_mask()
        assert layer.mask.numpy()[gone] == 1
        assert layer.integer_kernel().nonzeros == layer.target_nonzeros
        assert layer.beta.numpy() > 0  # the format stays

    def test_the_range_keeps_its_end_when_the_pruned_zone_grows(self):
        layer = built("dense", bits=4, nonzeros=0.5)
        end = layer.range
        layer.refresh_mask(0.9, shifted=True)
        layer.refresh_mask(0.7)
        np.testing.assert_allclose(layer.range + layer.beta.numpy(), end, rtol=1e-5)

    @pytest.mark.parametrize("bits", [2, 4, 8])
    def test_a_fitted_range_leaves_few_weights_without_gradient(self, bits):
        layer = built("pointwise", bits=bits, nonzeros=0.2)
        layer.theta.assign(3 * layer.theta.numpy())  # grown, with a range that has stayed behind
        layer.refresh_mask(shifted=True)
        kept = np.abs(layer.theta.numpy())[layer.mask.numpy() > 0]

        def beyond():
            end = layer.range + (layer.beta.numpy() if bits < 8 else 0)
            return np.mean(kept > end * 1.0001)

        before = beyond()
        layer.fit_range()
        assert beyond() <= (0 if bits == 8 else 0.5 if bits == 2 else 0.15)
        assert beyond() < before

    def test_a_new_layer_has_the_format_of_the_search(self):
        layer = built("conv", bits=4, nonzeros=0.5)
        layer.refresh_mask()
        theta = tf.convert_to_tensor(layer.theta)
        wanted = quantizers.quantize(theta, 4, layer.range) * layer.mask.numpy()
        np.testing.assert_allclose(layer.effective_kernel(training=False), wanted, atol=1e-6)

    def test_float_weights_have_8_bits_once_deployed(self):
        layer = built("conv", bits=32, nonzeros=0.5)
        layer.refresh_mask()
        wanted = layer.theta.numpy() * layer.mask.numpy()
        np.testing.assert_array_equal(layer.effective_kernel(training=False), wanted)
        layer.deployed.assign(1)
        integers = layer.integer_kernel()
        kernel = layer.effective_kernel(training=False)
        np.testing.assert_array_equal(integers.codes * np.float32(integers.step), kernel)

    def test_random_quantization_is_off_in_evaluation(self):
        layer = built("conv", bits=2)
        layer.weight_training = WeightTraining(random_quantization=True)
        layer.alpha.assign(0.5)
        first, second = layer.effective_kernel(True), layer.effective_kernel(True)
        assert np.any(first != second)
        exact = layer.effective_kernel(False)
        assert 0.3 < np.mean(first == exact) < 0.7
        assert int(layer.draws.numpy()) == 2

    @pytest.mark.parametrize("bad", [{"bits": 9}, {"nonzeros": 0.0}])
    def test_bad_arguments_name_what_was_received(self, bad):
        with pytest.raises(ValueError, match="Received"):
            KINDS["dense"](**bad)
