"""A kernel as a matrix, times its rows, is the layer."""

import numpy as np
import pytest
import tensorflow as tf

from udc_tf.compress import input_moments, kernel_matrix
from udc_tf.layers.compact_kernels import (
    CompactConv1D,
    CompactConv2D,
    CompactConv2DTranspose,
    CompactDense,
    CompactDepthwiseConv1D,
    CompactDepthwiseConv2D,
)
from udc_tf.quantize import reconstruction

LAYERS = {
    "same": (CompactConv2D(6, 3, padding="same"), (9, 8, 4)),
    "strided": (CompactConv2D(6, (3, 2), strides=2, padding="same"), (9, 8, 4)),
    "dilated": (CompactConv2D(6, 3, dilation_rate=2), (9, 8, 4)),
    "grouped": (CompactConv2D(6, 3, groups=2), (9, 8, 4)),
    "causal": (CompactConv1D(6, 3, padding="causal", dilation_rate=2), (9, 4)),
    "depthwise": (CompactDepthwiseConv2D(3, depth_multiplier=2, padding="same"), (9, 8, 4)),
    "depthwise_1d": (CompactDepthwiseConv1D(3, strides=2), (9, 4)),
    "dense": (CompactDense(6), (5, 4)),
}


def _built(case):
    layer, shape = LAYERS[case]
    x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    layer(x)
    return layer, x


@pytest.mark.parametrize("case", LAYERS)
def test_rows_times_matrix_are_the_outputs(case):
    layer, x = _built(case)
    kernel = np.random.default_rng(1).normal(size=layer.theta.shape).astype(np.float32)
    matrix = kernel_matrix.to_matrix(layer, kernel)
    rows = kernel_matrix.rows_of(layer, x, most=10_000)
    found = np.einsum("pgk,gkn->pgn", rows, matrix).reshape(len(rows), -1)
    expected = layer.apply_kernel(tf.constant(x), tf.constant(kernel)).numpy()
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-4)
    np.testing.assert_array_equal(kernel_matrix.from_matrix(layer, matrix, kernel.shape), kernel)


def test_a_transposed_kernel_comes_back():
    layer = CompactConv2DTranspose(5, 2, strides=2)
    layer(np.zeros((1, 4, 4, 3), np.float32))
    kernel = np.random.default_rng(1).normal(size=layer.theta.shape).astype(np.float32)
    matrix = kernel_matrix.to_matrix(layer, kernel)
    assert matrix.shape == (1, 12, 5)
    np.testing.assert_array_equal(kernel_matrix.from_matrix(layer, matrix, kernel.shape), kernel)
    found = input_moments.measure(layer, np.ones((9, 4, 4, 3), np.float32))
    assert found.second.shape == (1, 12, 12)


def test_moments_are_those_of_all_rows_if_there_are_few():
    layer, x = _built("grouped")
    rows = kernel_matrix.rows_of(layer, x, most=10_000).astype(np.float64)
    found = input_moments.measure(layer, x, 2 * x)
    expected = np.einsum("pgk,pgl->gkl", rows, rows) / len(rows)
    np.testing.assert_allclose(found.second, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.cross, 2 * expected, rtol=1e-4, atol=1e-4)
    centred = input_moments.measure(layer, x, centred=True).second
    np.testing.assert_allclose(centred[0], np.cov(rows[:, 0].T, bias=True), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["same", "depthwise", "dense"])
def test_what_varies_little_around_a_large_mean_has_moments_that_can_be_inverted(kind):
    layer, x = _built(kind)
    moments = input_moments.measure(layer, np.float32(100) + 1e-6 * x, centred=True)
    factor = reconstruction.inverse_factor(reconstruction.damped(moments.second))
    assert np.isfinite(factor).all()


def test_the_taps_of_a_transposed_kernel_share_no_mean():
    layer = CompactConv2DTranspose(5, 2, strides=2)
    layer(np.zeros((1, 4, 4, 3), np.float32))
    x = np.random.default_rng(2).normal(3.0, 1.0, (9, 4, 4, 3)).astype(np.float32)
    moments = input_moments.measure(layer, x, centred=True).second[0]
    assert np.linalg.eigvalsh(moments).min() > 0
