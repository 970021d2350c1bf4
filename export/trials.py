"""Asks Vela whether the configuration that a search ended with keeps its budgets on the device.

Working memory and cycles hardly depend on what finetuning does to the weights, so they are known
before it. What Vela says about one configuration corrects what is predicted for its neighbours.
"""

import dataclasses
import math

import numpy as np
from absl import logging

from udc_tf.cost.device_targets import Cycles, Sram
from udc_tf.cost.targets import Bound, BoundTarget, Flash, Target
from udc_tf.export import vela
from udc_tf.export.device_check import undisturbed_randomness
from udc_tf.export.measuring import measure_one
from udc_tf.export.size_coefficients import Measurement
from udc_tf.search.extract import repaired_choice
from udc_tf.search.model import SearchModel
from udc_tf.search.repair import Budget, extreme

_COMPILATIONS = 8
_ROUNDS = 24  # most of which choose what has been compiled before
_ENOUGH = 0.97  # of the budget that binds
_WELL_USED = 0.9  # of it: else Vela is asked with saving memory as well
_RESERVE = 0.97  # of the memory, with which it then has to do: weights are trained after this
_CLOSE = 0.005  # of a limit
_MEASURED = {Sram: "sram_bytes", Cycles: "cycles"}
# Training changes what a file takes besides weights: of tables, say, that are alike until then.
# `export` can take so much away from weights, if there are enough.
_CHANGED_BY_TRAINING = 0.03
_GIVEN = 0.5  # of the weights, that export may take away
# Where next to nothing but commands is in the file, it is the most that counts: with ranges that
# are alike or all different, whichever takes more, and this beyond it, of what is not weights. The
# few weights come in pieces of 16 bytes, and zeros of which training may not be as many.
_BEYOND = 0.02


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


@dataclasses.dataclass(frozen=True)
class _Limit:
    """The limit on one predicted cost, with which Vela's figure comes nearest to its budget.

    Attributes:
        now: the limit to try.
        low: below this, no configuration is left, or what Vela says is known to be inside.
        high: what is predicted for the least configuration that was too much.
        least: of any configuration.
    """

    now: float
    low: float
    high: float
    least: float

    def after(self, predicted: float, share: float, again: bool = False) -> "_Limit":
        """Where to go from a configuration that took this share of the budget: in proportion.

        Where that leads nowhere new, halfway between what was too little and what was too much.

        Args:
            predicted: of the configuration that was chosen under this limit.
            share: of the budget, by what Vela says.
            again: whether it had been chosen before, so that up to the limit there is no other.

        >>> limit = _Limit(now=100.0, low=50.0, high=math.inf, least=50.0)
        >>> limit.after(predicted=96.0, share=1.2).now
        80.0
        >>> limit.after(96.0, 1.2).after(80.0, 0.8).now
        88.0
        """
        if share <= 1:
            low = max(self.low, min(self.now if again else predicted, self.high))
            return dataclasses.replace(self, now=predicted / share, low=low)._inside()
        high = min(self.high, predicted)
        low = self.low if self.low < high else self.least
        return dataclasses.replace(self, now=predicted / share, low=low, high=high)._inside()

    def after_nothing(self) -> "_Limit":
        """Where to go from a limit that left no configuration."""
        return dataclasses.replace(self, low=max(self.low, min(self.now, self.high)))._inside()

    @property
    def found(self) -> bool:
        """Whether there is nothing between what was too little and what was too much."""
        return self.high == math.inf or self.high - self.low < _CLOSE * self.high

    def _inside(self) -> "_Limit":
        if self.low < self.now < self.high or self.high == math.inf:
            return self
        return dataclasses.replace(self, now=(self.low + self.high) / 2)


@undisturbed_randomness()
def choose_within(search: SearchModel) -> Trial:
    """The best configuration of which Vela says that it is inside of every target.

    Raises:
        ValueError: none was found, the smallest is not, either; with what Vela says about it.
    """
    best = _best_within(search)
    memory = _sram_budget(search)
    if memory is not None and (best is None or best.use < _WELL_USED):
        # What Vela buffers to be fast may fill the memory. `export` lets it save that.
        saving = _best_within(search, round(_RESERVE * memory))
        found = [trial for trial in (best, saving) if trial is not None]
        best = max(found, key=lambda trial: _merit(search, trial), default=None)
    if best is None:
        best = _smallest(search)
    logging.info("Vela says that the architecture takes %.1f%% of what binds it", 100 * best.use)
    return best


def _best_within(search: SearchModel, sram_limit: int | None = None) -> Trial | None:
    """Chooses again and again under other limits on what is predicted; None if nothing holds.

    Args:
        search: what ended.
        sram_limit: with which Vela saves memory.
    """
    bound, plan = search.problem.bound, search.problem.plan
    leasts = [predicted(b, extreme(b, plan, True)) for b in bound]
    limits = [_Limit(b.budget, n, math.inf, n) for b, n in zip(bound, leasts, strict=True)]
    trials: dict[tuple[int, ...], Trial] = {}
    for _ in range(_ROUNDS):
        scaled = [Bound(limit.now, b) for limit, b in zip(limits, bound, strict=True)]
        try:
            chosen = repaired_choice(search, budget=Budget(tuple(scaled)))
        except ValueError:
            limits = [limit.after_nothing() for limit in limits]
            continue
        known = trials.get(tuple(chosen))
        if known is None and len(trials) == _COMPILATIONS:
            break
        trial = known or _try(search, chosen, sram_limit)
        trials[tuple(chosen)] = trial
        if trial.holds and (trial.use >= _ENOUGH or (known and all(n.found for n in limits))):
            break
        limits = [
            limit.after(predicted(b, chosen), need / b.budget, bool(known)) if need else limit
            for limit, b, need in zip(limits, bound, trial.needs, strict=True)
        ]
    inside = (trial for trial in trials.values() if trial.holds)
    return max(inside, key=lambda trial: _merit(search, trial), default=None)


def _merit(search: SearchModel, trial: Trial) -> float:
    """What the chosen options are worth; where nobody knows, what they use."""
    worth = search.state.worth()
    if worth is None:
        return trial.use
    return float(worth[np.arange(len(trial.chosen)), trial.chosen].sum())


def predicted(bound: BoundTarget, chosen: np.ndarray) -> float:
    """The cost of a configuration by what is known of it without compiling it."""
    return float(bound.cost(bound.maps.counts(bound.maps.one_hot(chosen))))


def _sram_budget(search: SearchModel) -> int | None:
    return min((t.budget for t in search.problem.targets if isinstance(t, Sram)), default=None)


def _try(
    search: SearchModel,
    chosen: np.ndarray,
    sram_limit: int | None = None,
    least: bool = False,
) -> Trial:
    """What Vela says of a configuration; at most where `export` can take nothing from weights."""
    problem = search.problem
    system = dataclasses.replace(vela.System.of(problem.targets), sram_limit=sram_limit)
    found = _measured(search, chosen, system, any_ranges=least)
    few = _CHANGED_BY_TRAINING * _besides(found) > _GIVEN * found.encoded_bytes
    if few:
        other = _measured(search, chosen, system, any_ranges=not least)
        found = max(found, other, key=lambda m: m.flash_bytes)
    needs = tuple(_need(t, found, least, few) for t in problem.targets)
    shares = [
        need / target.budget for need, target in zip(needs, problem.targets, strict=True) if need
    ]
    return Trial(chosen, needs, tuple(shares))


def _measured(
    search: SearchModel, chosen: np.ndarray, system: vela.System, any_ranges: bool
) -> Measurement:
    rng, allow_cpu = np.random.default_rng(0), search.problem.allow_cpu
    return measure_one(search, chosen, system, rng, allow_cpu, any_ranges)


def _besides(found: Measurement) -> int:
    """Bytes of a file besides its weights."""
    return found.flash_bytes - found.encoded_bytes


@undisturbed_randomness()
def is_within(search: SearchModel, chosen: np.ndarray) -> bool:
    """Whether Vela says that a configuration is inside of every target."""
    return _try(search, chosen).holds


@undisturbed_randomness()
def require_smallest(search: SearchModel) -> None:
    """Raises a `ValueError` if not even the smallest configuration is inside of every target."""
    _smallest(search)


def _smallest(search: SearchModel) -> Trial:
    """The least configuration, where need be with Vela saving memory as `export` lets it."""
    problem = search.problem
    budget = Budget(problem.bound)
    least = min((extreme(b, problem.plan, True) for b in problem.bound), key=budget.ratio)
    trial = _try(search, least, least=True)
    memory = _sram_budget(search)
    if not trial.holds and memory is not None:
        trial = _try(search, least, memory, least=True)
    if not trial.holds:
        known = [(n, t) for n, t in zip(trial.needs, problem.targets, strict=True) if n]
        raise ValueError(
            "No configuration is inside of every target: the smallest needs, by what Vela says, "
            f"{', '.join(t.describe(n) for n, t in known)}. Received: a budget of "
            f"{', '.join(t.describe(t.budget) for _, t in known)}"
        )
    return trial


def _need(target: Target, found: Measurement, least: bool, few: bool) -> float | None:
    """What was measured of a target's cost; None for what no compiler counts."""
    if isinstance(target, Flash):
        if few:
            return found.flash_bytes + math.ceil(_BEYOND * _besides(found))
        if least:
            return found.flash_bytes
        return max(found.flash_bytes, (1 + _CHANGED_BY_TRAINING) * _besides(found))
    name = _MEASURED.get(type(target))
    return None if name is None else float(getattr(found, name))
