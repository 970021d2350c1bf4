"""Rounding for the outputs: better than the nearest level, on the levels, inside the mask."""

import numpy as np
import pytest

from udc_tf.quantize import masks, reconstruction
from udc_tf.quantize.reconstruction import Levels


@pytest.fixture(scope="module")
def layer():
    """Weights, correlated inputs' moments, and their factor; two groups."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(2, 70, 5)).astype(np.float32)
    mixing = rng.normal(size=(2, 20, 70))
    inputs = rng.normal(size=(2, 400, 20)) @ mixing + 0.3 * rng.normal(size=(2, 400, 70))
    moments = reconstruction.damped(inputs.swapaxes(1, 2) @ inputs / 400)
    return weights, moments, reconstruction.inverse_factor(moments)


def _error(layer, rounded):
    return float(reconstruction.output_errors(layer[0], rounded, layer[1]).sum())


class TestRounding:
    @pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
    def test_in_order_beats_nearest_and_polishing_beats_both(self, layer, bits):
        weights, moments, factor = layer
        levels, _ = reconstruction.fitted_levels(weights, None, np.ones_like(weights), bits, True)
        nearest = levels.rounded(weights)
        ordered = reconstruction.round_in_order(weights, factor, levels)
        polished = reconstruction.polish(weights, ordered, moments, levels)
        assert _error(layer, ordered) < 0.8 * _error(layer, nearest)
        assert _error(layer, polished) < _error(layer, ordered)
        for found in (ordered, polished):
            codes = found / levels.steps
            np.testing.assert_allclose(codes, np.rint(codes), atol=1e-3)
            assert np.abs(codes).max() <= max(2 ** (bits - 1) - 1, 1) + 1e-3

    def test_pruned_weights_stay_zero_and_others_beyond_the_shift(self, layer):
        weights, moments, factor = layer
        worth = reconstruction.saliencies(weights, factor)
        mask = masks.largest(worth.astype(np.float32), 210).astype(np.float32)
        levels = Levels.of(np.full((2, 1, 5), 0.1, np.float32), bits=4, shift=3)
        found = reconstruction.round_in_order(weights, factor, levels, mask)
        found = reconstruction.polish(weights, found, moments, levels, mask)
        assert ((found != 0) == (mask > 0)).all()
        assert np.abs(found[mask > 0]).min() >= 0.3 - 1e-6

    def test_columns_of_several_levels_are_rounded_as_each_alone(self, layer):
        weights, _, factor = layer
        alone = [
            reconstruction.fitted_levels(weights, None, np.ones_like(weights), bits, True)[0]
            for bits in (2, 5)
        ]
        shape = alone[0].steps.shape
        joined = Levels(
            np.concatenate([x.steps for x in alone], -1),
            np.concatenate([np.full(shape, x.lowest) for x in alone], -1),
            np.concatenate([np.full(shape, x.highest) for x in alone], -1),
        )
        both = reconstruction.round_in_order(np.concatenate([weights] * 2, -1), factor, joined)
        for found, levels in zip(np.split(both, 2, -1), alone, strict=True):
            expected = reconstruction.round_in_order(weights, factor, levels)
            np.testing.assert_allclose(found, expected, atol=1e-5)


class TestLevels:
    def test_a_step_of_its_own_for_each_column_has_the_smaller_error(self, layer):
        weights = layer[0] * np.array([0.1, 1, 10, 0.3, 3], np.float32)
        ones = np.ones_like(weights)
        errors = [
            np.square(levels.rounded(weights) - weights).sum()
            for levels, _ in (
                reconstruction.fitted_levels(weights, None, ones, 3, per_column)
                for per_column in (True, False)
            )
        ]
        assert errors[0] < errors[1]

    def test_levels_of_a_pruned_layer_begin_where_its_weights_do(self, layer):
        weights = layer[0]
        mask = masks.largest(np.abs(weights), 70).astype(np.float32)
        _, shift = reconstruction.fitted_levels(weights, mask, np.ones_like(weights), 3, False)
        assert shift >= 2

    def test_dead_inputs_do_not_matter(self):
        moments = reconstruction.damped(np.zeros((1, 3, 3)))
        assert np.isfinite(reconstruction.inverse_factor(moments)).all()
