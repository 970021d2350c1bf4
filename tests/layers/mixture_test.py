"""The hand-written gradient of the mixed kernels against automatic differentiation."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from udc_tf.layers.mixture import mixed_kernels
from udc_tf.quantize import masks, quantizers

_SHAPE, _SAMPLES, _FRACTIONS = (3, 3, 4, 6), 3, 4


class _Case:
    def __init__(self, bits, seed=0):
        rng = np.random.default_rng(seed)
        theta = rng.normal(size=_SHAPE)
        theta[0, 0, 0, 0] = 0.0
        self.bits = tuple(bits)
        self.buckets = tf.constant(rng.integers(0, _FRACTIONS + 1, _SHAPE), tf.int32)
        self.upstream = rng.normal(size=(_SAMPLES, *_SHAPE)).astype(np.float32)
        self.inputs = [
            tf.constant(v, tf.float32)
            for v in (
                theta,
                rng.uniform(0.5, 1.5, len(bits)),
                rng.dirichlet(np.ones(len(bits)), _SAMPLES),
                rng.dirichlet(np.ones(_FRACTIONS), _SAMPLES),
                rng.uniform(size=(_SAMPLES, 1, 1, 4, 1)),
            )
        ]

    def values(self, function):
        with tf.GradientTape() as tape:
            tape.watch(self.inputs)
            kernels = function(*self.inputs)
            total = tf.reduce_sum(kernels * self.upstream)
        return [kernels, *tape.gradient(total, self.inputs, unconnected_gradients="zero")]

    def by_hand(self, theta, ranges, z, z_sparsity, scale):
        return mixed_kernels(
            theta,
            self.bits,
            ranges,
            z,
            buckets=self.buckets,
            tails=masks.tail_sums(z_sparsity),
            scale=scale,
        )

    def by_definition(self, theta, ranges, z, z_sparsity, scale):
        levels = tf.stack(
            [quantizers.quantize(theta, b, ranges[k]) for k, b in enumerate(self.bits)]
        )
        masks = tf.stack([tf.cast(self.buckets <= k, tf.float32) for k in range(_FRACTIONS)])
        mixed = tf.einsum("sk,khwio->shwio", z, levels)
        return mixed * tf.einsum("sk,khwio->shwio", z_sparsity, masks) * scale


class TestMixedKernels:
    @settings(deadline=None, max_examples=40, derandomize=True)
    @given(
        bits=st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 32]), min_size=1, unique=True),
        seed=st.integers(0, 99),
    )
    def test_value_and_gradient_are_those_of_the_definition(self, bits, seed):
        case = _Case(bits, seed)
        expected = case.values(case.by_definition)
        for mine, theirs in zip(case.values(case.by_hand), expected, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=2e-5)

    @pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
    def test_pruned_weights_get_their_share(self, share):
        theta, tails = tf.constant([1.0, 2.0, 3.0]), tf.constant([[1.0, 0.5, 0.0]])
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([theta, tails])
            kernels = mixed_kernels(
                theta,
                (quantizers.FLOAT_BITS,),
                tf.ones(1),
                tf.ones([1, 1]),
                buckets=tf.constant([0, 2, 1], tf.int32),
                tails=tails,
                pruned_gradient=share,
            )
        np.testing.assert_allclose(kernels, [[1.0, 0.0, 1.5]])
        expected = share + (1 - share) * np.array([1.0, 0.0, 0.5])
        np.testing.assert_allclose(tape.gradient(kernels, theta), expected)
        np.testing.assert_allclose(tape.gradient(kernels, tails), [[1.0, 3.0, 2.0]])

    def test_one_bit_is_never_zero(self):
        kernels = mixed_kernels(
            tf.constant([0.0, 1e-20, -1e-20, 5.0]), (1,), tf.constant([0.5]), tf.ones([1, 1])
        )
        np.testing.assert_array_equal(kernels, [[0.5, 0.5, -0.5, 0.5]])
