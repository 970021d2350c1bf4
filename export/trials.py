"""Asks Vela whether the configuration that a search ended with keeps its budgets on the device.

Working memory and cycles hardly depend on what finetuning does to the weights, so they are known
before it. What Vela says about one configuration corrects what is predicted for its neighbours.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from absl import logging

from udc_tf.cost.device_targets import Cycles, Sram
from udc_tf.cost.targets import Bound, BoundTarget, Flash, Target
from udc_tf.export import vela
from udc_tf.export.device_check import undisturbed_randomness
from udc_tf.export.size_fit import Measurement, measure_one
from udc_tf.search.extract import repaired_choice
from udc_tf.search.model import SearchModel
from udc_tf.search.repair import Budget, extreme

_ROUNDS = 8
_ENOUGH = 0.97  # of the budget that binds
_STEP = 1.02  # by which a prediction is raised at least where a network was over
_FLASH = 1.01  # of its budget: weights are trained after this, and `export` tightens them
_MEASURED = {Flash: "flash_bytes", Sram: "sram_bytes", Cycles: "cycles"}


@dataclasses.dataclass(frozen=True)
class Trial:
    """A configuration and what Vela says that it takes of each target's budget."""

    chosen: np.ndarray
    needs: tuple[float | None, ...]  # None for what no compiler counts
    shares: tuple[float, ...]

    @property
    def holds(self) -> bool:
        return max(self.shares) <= 1

    @property
    def use(self) -> float:
        return max(self.shares)


@undisturbed_randomness()
def choose_within(search: SearchModel) -> Trial:
    """The most likely configuration of which Vela says that it is inside of every target.

    Raises:
        ValueError: none was found, the smallest is not, either; with what Vela says about it.
    """
    bound = search.problem.bound
    factors = np.ones(len(bound))
    best: Trial | None = None
    tried: set[tuple[int, ...]] = set()
    for _ in range(_ROUNDS):
        scaled = [Bound(b.budget / f, b) for b, f in zip(bound, factors, strict=True)]
        try:
            chosen = repaired_choice(search, budget=Budget(tuple(scaled)))
        except ValueError:
            break  # nothing is left by what Vela says: the smallest, which was asked about before
        trial = _try(search, chosen)
        if trial.holds and (best is None or trial.use > best.use):
            best = trial
        if best is not None and (best.use >= _ENOUGH or tuple(trial.chosen) in tried):
            break
        tried.add(tuple(trial.chosen))
        factors = _corrected(factors, trial, bound)
    if best is None:
        best = _smallest(search)
    logging.info("Vela says that the architecture takes %.1f%% of what binds it", 100 * best.use)
    return best


def _try(search: SearchModel, chosen: np.ndarray, sram_limit: int | None = None) -> Trial:
    problem = search.problem
    system = dataclasses.replace(vela.System.of(problem.targets), sram_limit=sram_limit)
    found = measure_one(search, chosen, system, np.random.default_rng(0), problem.allow_cpu)
    needs = tuple(_need(t, found) for t in problem.targets)
    shares = [
        need / (target.budget * (_FLASH if isinstance(target, Flash) else 1))
        for need, target in zip(needs, problem.targets, strict=True)
        if need
    ]
    return Trial(chosen, needs, tuple(shares))


def _corrected(factors: np.ndarray, trial: Trial, bound: Sequence[BoundTarget]) -> np.ndarray:
    """What was found over what is predicted; more than before where that was too much."""
    found = factors.copy()
    for i, (target, need) in enumerate(zip(bound, trial.needs, strict=True)):
        if need:
            one_hot = target.maps.one_hot(trial.chosen)
            found[i] = need / float(target.cost(target.maps.counts(one_hot)))
            if need > target.budget:
                found[i] = max(found[i], _STEP * factors[i])
    return found


@undisturbed_randomness()
def require_smallest(search: SearchModel) -> None:
    """Raises a `ValueError` if not even the smallest configuration is inside of every target."""
    _smallest(search)


def _smallest(search: SearchModel) -> Trial:
    """The least configuration, where need be with Vela saving memory as `export` lets it."""
    problem = search.problem
    budget = Budget(problem.bound)
    least = min((extreme(b, problem.plan, True) for b in problem.bound), key=budget.ratio)
    trial = _try(search, least)
    memory = [t.budget for t in problem.targets if isinstance(t, Sram)]
    if not trial.holds and memory:
        trial = _try(search, least, min(memory))
    if not trial.holds:
        said = ", ".join(
            f"{t.describe(n)} of {t.describe(t.budget)}"
            for n, t in zip(trial.needs, problem.targets, strict=True)
            if n
        )
        raise ValueError(
            "No configuration is inside of every target: the smallest needs, by what Vela says, "
            f"{said}. Received: {len(trial.shares)} targets"
        )
    return trial


def _need(target: Target, found: Measurement) -> float | None:
    """What was measured of a target's cost; None for what no compiler counts."""
    name = _MEASURED.get(type(target))
    return None if name is None else float(getattr(found, name))
