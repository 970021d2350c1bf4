"""Repair by what options are worth."""

import numpy as np
import pytest

from udc_tf.search.repair import Budget, repair


class _Sum:
    """A budget on the sum of sizes, in place of a network's."""

    def __init__(self, sizes, budget):
        self.sizes, self.budget, self.tangled = np.asarray(sizes, float), budget, False

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


class _Largest:
    """A target on the largest of sums, as working memory is; sizes: [peaks, decisions, options]."""

    def __init__(self, sizes, budget):
        self.maps, self.sizes, self.budget = self, np.asarray(sizes, float), budget

    def one_hot(self, chosen):
        return np.eye(self.sizes.shape[-1])[chosen]

    def counts(self, one_hot):
        return np.einsum("pdo,...do->...p", self.sizes, one_hot)

    def counts_of_moves(self, chosen):
        moved = self.one_hot(chosen)[None, None].repeat(len(chosen), 0)
        moved = moved.repeat(self.sizes.shape[-1], 1).copy()
        for row in range(len(chosen)):
            moved[row, :, row] = np.eye(self.sizes.shape[-1])
        return self.counts(moved)

    def cost(self, counts):
        return counts.max(-1)

    def peaks(self, counts):
        return counts


# A width, and the non-zeros of two layers that both have to give way to it.
PEAKS = [[[2, 6], [1, 3], [1, 3]], [[0, 0], [1, 2], [0, 0]]]
FLASH = [[[1, 2], [1, 3], [1, 3]]]


def test_what_gives_way_may_be_several_changes():
    worth = np.array([[-1.0, 0.0], [-0.2, 0.0], [-0.2, 0.0]])
    budget = Budget((_Largest(PEAKS, 8.5), _Largest(FLASH, 20)))
    likely = np.array([[0.0, -1.0], [-1.0, 0.0], [-1.0, 0.0]])
    chosen = repair(likely, np.ones((3, 2), bool), budget, np.zeros(3, int), worth)
    assert chosen.tolist() == [1, 0, 0]


def test_what_is_left_of_one_target_is_filled_where_another_binds():
    likely = np.array([[0.0, -1.0], [0.0, -1.0], [0.0, -1.0]])
    memory = _Largest([[[8, 20], [0, 0], [0, 0]]], 8)
    budget = Budget((memory, _Largest(FLASH, 6)))
    chosen = repair(likely, np.ones((3, 2), bool), budget, np.zeros(3, int))
    assert chosen.tolist() in ([0, 1, 0], [0, 0, 1])
