"""Buckets and ranges of a graph are those of numpy."""

import numpy as np
import pytest
import tensorflow as tf

from udc_tf.quantize import masks, quantizers, ranking

_FRACTIONS = (0.01, 0.1, 0.3, 0.5, 1.0)


def _case(kind: str, size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    magnitude, activity = np.abs(rng.normal(size=size)), np.ones(size)
    if kind == "probable":
        activity = rng.uniform(size=size)
    elif kind == "ties":  # equal weights are kept in their order
        magnitude[rng.integers(0, size, size // 2)] = magnitude[0]
        activity = rng.integers(0, 2, size)
    elif kind == "zeros":
        magnitude[:] = 0
    return magnitude.astype(np.float32), activity.astype(np.float32)


@pytest.mark.parametrize("kind", ["all", "probable", "ties", "zeros"])
@pytest.mark.parametrize("size", [3, 700, 20_000])
@pytest.mark.parametrize("sorting", [True, False])
def test_both_ways_give_the_buckets_of_numpy(monkeypatch, sorting, size, kind):
    monkeypatch.setattr(ranking, "_FEW", 0)  # bins for small kernels, too
    magnitude, activity = _case(kind, size)
    for fractions in (_FRACTIONS, (0.2, 0.5)):
        found = ranking.nested_buckets(
            tf.constant(magnitude), tf.constant(activity), fractions, sorting=sorting
        )
        expected = masks.nested_buckets(magnitude, activity, fractions)
        np.testing.assert_array_equal(found, expected)


def test_ranges_are_those_of_numpy():
    bits = (1, 2, 3, 4, 8, 32)
    for size in (5, 3000):
        theta = np.random.default_rng(size).normal(size=size).astype(np.float32)
        found = quantizers.initial_ranges(tf.constant(theta), bits)
        expected = [quantizers.initial_range(theta, b) for b in bits]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
