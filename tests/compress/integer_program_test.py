"""The choice is the best there is."""

import itertools

import numpy as np
import pytest

from udc_tf.compress.integer_program import OutOfReachError, choose


def _random(seed):
    rng = np.random.default_rng(seed)
    harms = [np.exp(rng.normal(scale=3, size=4)) for _ in range(5)]
    costs = [[rng.uniform(1, 9, size=4) for _ in range(5)] for _ in range(2)]
    return harms, costs


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_best_of_all_choices(seed):
    harms, costs = _random(seed)
    limits = [22.0, 24.0]

    def total(rows, chosen):
        return sum(row[o] for row, o in zip(rows, chosen, strict=True))

    inside = [
        chosen
        for chosen in itertools.product(range(4), repeat=5)
        if all(total(c, chosen) <= limit for c, limit in zip(costs, limits, strict=True))
    ]
    best = min(total(harms, chosen) for chosen in inside)
    found = choose(harms, costs, limits)
    assert found.options in inside
    assert found.harm == pytest.approx(best, rel=1e-3)
    assert found.bound <= found.harm


def test_says_what_is_out_of_reach():
    harms, costs = _random(0)
    with pytest.raises(OutOfReachError, match=r"The least is .* Received: 2"):
        choose(harms, costs, [2.0, 50.0])


def test_two_limits_that_exclude_each_other():
    rows = [np.array([1.0, 9.0])]
    with pytest.raises(OutOfReachError, match="at once"):
        choose([np.zeros(2)], [rows, [rows[0][::-1]]], [2.0, 2.0])
