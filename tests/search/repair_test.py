"""Repair by what options are worth."""

import numpy as np
import pytest

from udc_tf.search.repair import repair


class _Sum:
    """A budget on the sum of sizes, in place of a network's."""

    def __init__(self, sizes, budget):
        self.sizes, self.budget = np.asarray(sizes, float), budget

    def ratio(self, chosen):
        return float(self.sizes[np.arange(len(chosen)), chosen].sum() / self.budget)

    def after_moves(self, chosen):
        now = self.sizes[np.arange(len(chosen)), chosen][:, None]
        return self.ratio(chosen) + (self.sizes - now) / self.budget

    def gains(self, chosen):
        return np.maximum(self.ratio(chosen) - 0.99, 0) - np.maximum(
            self.after_moves(chosen) - 0.99, 0
        )


def _repaired(sizes, worth, budget, likely):
    shape = np.shape(sizes)
    log_pi = np.where(np.arange(shape[1]) == np.asarray(likely)[:, None], 0.0, -1.0)
    return repair(
        log_pi, np.ones(shape, bool), _Sum(sizes, budget), np.zeros(shape[0], int), np.array(worth)
    )


def test_one_large_change_is_worth_two_small_ones():
    # At one price for all sizes both large options are left out; one of them fits.
    sizes, worth = [[1, 3], [1, 9]], [[-2.2, 0.0], [-6.3, 0.0]]
    assert _repaired(sizes, worth, 10.5, (1, 0)).tolist() == [0, 1]


def test_room_is_not_filled_with_what_is_worth_nothing():
    sizes, worth = [[1, 5], [1, 5]], [[0.0, 0.0], [-1.0, 0.0]]
    assert _repaired(sizes, worth, 20, (0, 0)).tolist() == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_inside_and_nearly_the_best(seed):
    rng = np.random.default_rng(seed)
    sizes = np.cumsum(rng.random((6, 3)), axis=1)
    worth = np.cumsum(rng.exponential(size=(6, 3)), axis=1)
    budget = 0.6 * sizes[:, -1].sum()
    chosen = _repaired(sizes, worth, budget, np.full(6, 2))
    everything = np.stack(np.meshgrid(*[range(3)] * 6, indexing="ij"), -1).reshape(-1, 6)
    rows = np.arange(6)
    fits = sizes[rows, everything].sum(1) <= budget
    best = worth[rows, everything].sum(1)[fits].max()
    assert sizes[rows, chosen].sum() <= budget
    assert worth[rows, chosen].sum() > 0.93 * best
