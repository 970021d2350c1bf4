"""What every option of every layer costs, for every target."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from udc_tf.compress.storage_options import Option
from udc_tf.cost.flash import BoundFlash
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import Flash
from udc_tf.search.problem import SearchProblem


@dataclasses.dataclass(frozen=True)
class Prices:
    """One target's costs: what every network has, and what the options add.

    Attributes:
        constant: without any layer's options.
        layers: for each layer, of each option.
        budget: for all of it.
        is_flash: whether compiled files tell what it really is.
    """

    constant: float
    layers: tuple[np.ndarray, ...]
    budget: float
    is_flash: bool = False

    def of(self, chosen: Sequence[int]) -> float:
        return self.constant + sum(float(p[o]) for p, o in zip(self.layers, chosen, strict=True))

    def corrected(self, chosen: Sequence[int], stored: Sequence[float], total: float) -> "Prices":
        """As a compiled file of chosen options has it.

        Args:
            stored: what each of their layers takes in it.
            total: the whole file.
        """
        layers = tuple(
            prices * (found / max(float(prices[option]), 1.0))
            for prices, option, found in zip(self.layers, chosen, stored, strict=True)
        )
        return dataclasses.replace(self, constant=total - sum(stored), layers=layers)


def prices_of(
    problem: SearchProblem,
    options: Mapping[str, tuple[Option, ...]],
    entropies: Mapping[str, Sequence[float]],
) -> list[Prices]:
    """One entry per target.

    Args:
        options: of each layer.
        entropies: of the integers of each option, in bits per weight.
    """
    plan, found = problem.plan, []
    base = option_numbers(plan, {name: rows[0] for name, rows in options.items()})
    for target, bound in zip(problem.targets, problem.bound, strict=True):

        def costs(rows: np.ndarray, bound=bound) -> np.ndarray:
            return np.asarray(bound.cost(bound.maps.counts(bound.maps.one_hot(rows))), np.float64)

        constant = float(costs(base[None])[0])
        layers = []
        for name, rows in options.items():
            chosen = np.stack([option_numbers(plan, {name: option}, base) for option in rows])
            layers.append(costs(chosen) - constant)
        if isinstance(target, Flash):
            found.append(_flash(target, plan, constant, layers, base, options, entropies))
        else:
            found.append(Prices(constant, tuple(layers), bound.budget))
    return found


def _flash(
    target: Flash,
    plan: Plan,
    constant: float,
    layers: list[np.ndarray],
    base: np.ndarray,
    options: Mapping[str, tuple[Option, ...]],
    entropies: Mapping[str, Sequence[float]],
) -> Prices:
    """Flash, with what the weights' own integers take instead of what such integers take in general."""
    bound: BoundFlash = target.cost.bind(plan)
    counts = bound.maps.counts(bound.maps.one_hot(base))
    coding = np.asarray(bound.layer_bytes(counts), np.float64) - (
        bound.model.per_operator + bound.model.per_channel * np.asarray(counts.outputs, np.float64)
    )
    weights = np.asarray(counts.weights, np.float64)
    own = [
        np.asarray(entropies[name], np.float64) * weights[i] / 8 for i, name in enumerate(options)
    ]
    rest = constant - float(coding.sum())
    del layers
    return Prices(rest, tuple(own), target.budget, is_flash=True)


def option_numbers(
    plan: Plan, chosen: Mapping[str, Option], base: np.ndarray | None = None
) -> np.ndarray:
    """The option of each decision; of decisions about other layers, that of `base`."""
    numbers = np.zeros(len(plan.decisions), int) if base is None else base.copy()
    for name, option in chosen.items():
        for kind, value in (("bits", option.bits), ("sparsity", option.nonzeros)):
            index = plan.decision_index(kind, name)
            if index is not None:
                numbers[index] = plan.decisions[index].options.index(value)
    return numbers
