"""Prices that compiled files have corrected."""

import numpy as np

from udc_tf.compress.prices import Prices


def test_what_files_had_is_kept_while_other_options_follow_the_last_one():
    prices = Prices(100.0, (np.array([10.0, 20.0]), np.array([40.0, 80.0])), budget=200.0)
    once = prices.corrected([0, 1], stored=[12.0, 80.0], total=200.0)
    assert (once.constant, once.of([0, 1])) == (108.0, 200.0)
    np.testing.assert_allclose(once.layers[0], [12, 24])
    twice = once.corrected([1, 1], stored=[18.0, 80.0], total=206.0, margin=0.5)
    np.testing.assert_allclose(twice.layers[0], [12, 18])
    assert twice.budget == 100.0


def test_no_option_takes_less_than_the_least_and_copies_are_counted():
    prices = Prices(0.0, (np.array([10.0, 50.0, 100.0]),), budget=1.0)
    np.testing.assert_allclose(prices.seen([40.0], [110.0]).layers[0], [38, 50, 100])
    np.testing.assert_allclose(prices.seen([30.0], [300.0]).layers[0], [28.5, 142.5, 285])
