"""Asks Vela whether the configuration that a search ended with keeps its budgets on the device.

Working memory and cycles hardly depend on what finetuning does to the weights, so they are known
before it. What Vela says about one configuration corrects what is predicted for its neighbours.
"""

import numpy as np
from absl import logging

from udc_tf.cost.device_targets import Cycles, Sram
from udc_tf.cost.targets import Bound, Flash, Target
from udc_tf.export import vela
from udc_tf.export.device_check import undisturbed_randomness
from udc_tf.export.size_fit import Measurement, measure_one
from udc_tf.search.extract import repaired_choice
from udc_tf.search.model import SearchModel
from udc_tf.search.repair import Budget

_ROUNDS = 6
_ENOUGH = 0.97  # of the budget that binds
_MEASURED = {Flash: "flash_bytes", Sram: "sram_bytes", Cycles: "cycles"}


@undisturbed_randomness()
def choose_within(search: SearchModel) -> np.ndarray:
    """The most likely configuration of which Vela says that it is inside of every target.

    Raises:
        ValueError: none was found; with what Vela says about the last one.
    """
    problem = search.problem
    system = vela.System.of(problem.targets)
    factors = np.ones(len(problem.bound))
    best, used, tried = None, 0.0, set[tuple[int, ...]]()
    for _ in range(_ROUNDS):
        scaled = Budget(
            tuple(
                Bound(bound.budget / factor, bound)
                for bound, factor in zip(problem.bound, factors, strict=True)
            )
        )
        chosen = repaired_choice(search, budget=scaled)
        found = measure_one(search, chosen, system, np.random.default_rng(0), problem.allow_cpu)
        needs = [_need(t, found) for t in problem.targets]
        shares = [n / t.budget for n, t in zip(needs, problem.targets, strict=True) if n]
        if max(shares) <= 1 and max(shares) > used:
            best, used = chosen, max(shares)
        if used >= _ENOUGH or tuple(chosen) in tried:
            break
        tried.add(tuple(chosen))
        for i, (bound, need) in enumerate(zip(problem.bound, needs, strict=True)):
            if need:
                one_hot = bound.maps.one_hot(chosen)
                factors[i] = need / float(bound.cost(bound.maps.counts(one_hot)))
    if best is None:
        said = ", ".join(
            f"{t.describe(n)} of {t.describe(t.budget)}"
            for n, t in zip(needs, problem.targets, strict=True)
            if n
        )
        raise ValueError(
            "No configuration was found that Vela compiles inside of every target; the last had "
            f"{said}. Give more, or a space with smaller networks. Received: {len(shares)} targets"
        )
    logging.info("Vela says that the architecture takes %.1f%% of what binds it", 100 * used)
    return best


def _need(target: Target, found: Measurement) -> float | None:
    """What was measured of a target's cost; None for what no compiler counts."""
    name = _MEASURED.get(type(target))
    return None if name is None else float(getattr(found, name))
