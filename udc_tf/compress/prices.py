"""What every option of every layer costs, for every target."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from udc_tf.compress.storage_options import Option
from udc_tf.cost.flash import BoundFlash, mask_bits
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import BoundTarget, Flash
from udc_tf.search.problem import SearchProblem

_CODER = 1.05  # what Vela's coder takes over the entropy of ordinary layers
_LEAST = 0.95  # of what largest weights take: those that data choose may take a little less
_COPIES = 1.8  # times what is computed: more than an error


@dataclasses.dataclass(frozen=True)
class Prices:
    """One target's costs: what every network has, and what the options add.

    Attributes:
        constant: without any layer's options.
        layers: for each layer, of each option.
        budget: for all of it.
        is_flash: whether compiled files tell what it really is.
        known: what a file had of an option, by the numbers of layer and option.
    """

    constant: float
    layers: tuple[np.ndarray, ...]
    budget: float
    is_flash: bool = False
    known: Mapping[tuple[int, int], float] = dataclasses.field(default_factory=dict)

    def of(self, chosen: Sequence[int]) -> float:
        return self.constant + sum(float(p[o]) for p, o in zip(self.layers, chosen, strict=True))

    @property
    def smallest(self) -> float:
        """Of all choices."""
        return self.constant + sum(float(prices.min()) for prices in self.layers)

    def with_room(self, share: float) -> "Prices":
        """With that share of the budget left free."""
        return dataclasses.replace(self, budget=self.budget * (1 - share))

    def corrected(
        self, chosen: Sequence[int], stored: Sequence[float], total: float, margin: float = 0.0
    ) -> "Prices":
        """As a compiled file of chosen options has it; what earlier ones had is kept.

        Args:
            stored: what each of their layers takes in it.
            total: the whole file.
            margin: the share of the budget that is left free from now on.
        """
        layers = tuple(
            prices * (found / max(float(prices[option]), 1.0))
            for prices, option, found in zip(self.layers, chosen, stored, strict=True)
        )
        known = {**self.known, **dict(zip(enumerate(chosen), stored, strict=True))}
        for (layer, option), found in known.items():
            layers[layer][option] = found
        return dataclasses.replace(
            self,
            constant=total - sum(stored),
            layers=layers,
            budget=self.budget * (1 - margin),
            known=known,
        )

    def scaled(self, chosen: Sequence[int], found: float, margin: float = 0.0) -> "Prices":
        """As a compiled network of chosen options has it, of which only the sum is known."""
        factor = found / max(self.of(chosen), 1.0)
        return dataclasses.replace(
            self,
            constant=self.constant * factor,
            layers=tuple(prices * factor for prices in self.layers),
            budget=self.budget * (1 - margin),
        )

    def seen(self, least: Sequence[float], most: Sequence[float]) -> "Prices":
        """With what each layer takes in the files of the smallest and of the largest network.

        No option takes less than the least, and the cheapest takes just that. Where both take
        several times what is computed, the file has copies of the weights, as it may of a layer
        that is called several times.
        """
        layers = []
        for prices, low, high in zip(self.layers, least, most, strict=True):
            low = _LEAST * low
            copies = min(high / max(float(prices.max()), 1.0), low / max(float(prices.min()), 1.0))
            cheapest = int(prices.argmin())
            prices = np.maximum(prices * (copies if copies > _COPIES else 1.0), low)
            prices[cheapest] = low
            layers.append(prices)
        return dataclasses.replace(self, layers=tuple(layers))

    def without_options(self, found: float) -> "Prices":
        """Of a target that all options keep."""
        layers = tuple(np.zeros_like(prices) for prices in self.layers)
        return dataclasses.replace(self, constant=found, layers=layers)


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
        if isinstance(target, Flash):
            found.append(_flash(target, plan, base, options, entropies))
            continue

        def costs(rows: np.ndarray, bound: BoundTarget = bound) -> np.ndarray:
            return np.asarray(bound.cost(bound.maps.counts(bound.maps.one_hot(rows))), np.float64)

        constant = float(costs(base[None])[0])
        layers = []
        for name, rows in options.items():
            chosen = np.stack([option_numbers(plan, {name: option}, base) for option in rows])
            layers.append(costs(chosen) - constant)
        found.append(Prices(constant, tuple(layers), bound.budget))
    return found


def _flash(
    target: Flash,
    plan: Plan,
    base: np.ndarray,
    options: Mapping[str, tuple[Option, ...]],
    entropies: Mapping[str, Sequence[float]],
) -> Prices:
    """Flash, with what the weights' own integers take in place of what such a layer's would."""
    bound: BoundFlash = target.cost.bind(plan)
    counts = bound.maps.counts(bound.maps.one_hot(base))
    weights, coded = (np.asarray(a, np.float64) for a in (counts.weights, counts.coded_weights))
    overhead = bound.model.per_operator + bound.model.per_channel * np.asarray(counts.outputs)
    coding = np.asarray(bound.layer_bytes(counts)) - overhead
    # The zeros that fill up blocks are coded, too.
    filling = coded * mask_bits(np.minimum(weights / coded, 1.0)) / 8
    layers = tuple(
        np.asarray(entropies[name], np.float64) * weights[i] / 8 * _CODER + filling[i]
        for i, name in enumerate(options)
    )
    constant = float(bound.cost(counts)) - float(coding.sum())
    return Prices(constant, layers, target.budget, is_flash=True)


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
