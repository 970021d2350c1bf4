"""Single moves of decisions whose loss is asked, and what they say of neighbouring options."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import scipy.special

from udc_tf.cost.priced_network import Decision, Plan

SIGNIFICANT = 2.0  # standard errors
# Of a loss under shared weights so much is left when a network has its own: of a map and a
# classifier, 0.3 per unit of harm when they were trained, and 0.8 to 2.7 before.
LASTING = 0.2
# Operators that the prior takes for equal still differ by this, as a unit.
_LEAST_HARM = 0.1
NOTHING = 1e-9
# What goes on by degrees, without an option at which something is lost at once.
GRADED = ("width", "sparsity")

Move = tuple[int, int]  # decision, option


@dataclasses.dataclass(frozen=True)
class Step:
    """From an option to the next larger that was measured: what the smaller one costs more.

    Attributes:
        upward: above the base.
        prior: the difference of harm by the prior alone.
        harm: the same with what earlier rounds have found.
    """

    decision: int
    small: int
    large: int
    upward: bool
    prior: float
    harm: float
    measured: float
    error: float

    @property
    def unit(self) -> float:
        return max(self.harm, _LEAST_HARM)

    @property
    def rate(self) -> float:
        """The loss per unit of the prior's harm; that a gain corresponds to, above the base."""
        loss = self.measured / (LASTING if self.upward else 1.0)
        return max(loss, self.error, NOTHING) / self.weight

    @property
    def weight(self) -> float:
        return max(self.prior, _LEAST_HARM)

    @property
    def is_significant(self) -> bool:
        return self.measured > SIGNIFICANT * self.error


def options_to_measure(decision: Decision, base: int) -> list[int]:
    """The base and the smallest; of bits and kernel sizes their neighbours, too; of operators all.

    Of sparsities also the largest: weights that were pruned once may be missed by now. Channels
    that the base lacks have seen too little training to be of use at once.

    >>> options_to_measure(Decision("width", "conv", (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)), 2)
    [0, 2]
    >>> options_to_measure(Decision("sparsity", "conv", (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)), 2)
    [0, 2, 5]
    >>> options_to_measure(Decision("bits", "conv", (1, 2, 4, 8)), 2)
    [0, 1, 2, 3]
    """
    count = len(decision.options)
    if decision.kind == "choice":
        return list(range(count))
    if decision.kind == "width":
        return sorted({0, base})
    if decision.kind == "sparsity":
        return sorted({0, base, count - 1})
    return sorted({0, max(base - 1, 0), base, min(base + 1, count - 1)})


def bases_of(plan: Plan, likely: np.ndarray) -> np.ndarray:
    """The configuration in which each decision is moved, [decisions, decisions].

    It is the most likely one, but with the branch in which the decision is: what is left out has no
    say otherwise.
    """
    gates = {part.name: part.gates for part in plan.fixed}
    gates |= {layer.name: layer.gates for layer in plan.layers}
    for layer in plan.layers:
        for group in plan.group_of(layer.outputs):
            gates.setdefault(plan.groups[group].name, layer.gates)
    bases = np.tile(likely, (len(likely), 1))
    for row, decision in enumerate(plan.decisions):
        for gate in gates.get(decision.subject, ()):
            choice = plan.decision_index("choice", gate.choice)
            if choice is not None:
                bases[row, choice] = gate.branch
    return bases


def configurations(plan: Plan, bases: np.ndarray) -> dict[Move, tuple[int, ...]]:
    """For every decision and option that is to be measured, the whole configuration."""
    found = {}
    for row, decision in enumerate(plan.decisions):
        for option in options_to_measure(decision, int(bases[row, row])):
            chosen = bases[row].copy()
            chosen[row] = option
            found[row, option] = tuple(int(k) for k in chosen)
    return found


def standard_error(values: np.ndarray) -> float:
    """Of their mean: twice that is as rarely exceeded by chance as it would be of many values.

    >>> round(standard_error(np.array([1.0, 2.0, 3.0, 4.0])), 2)
    1.07
    """
    count = len(values)
    rarely = scipy.special.stdtrit(count - 1, scipy.special.ndtr(SIGNIFICANT)) / SIGNIFICANT
    return float(rarely * values.std(ddof=1) / np.sqrt(count))


def steps_between(
    decisions: Sequence[Decision],
    harms: np.ndarray,
    bases: np.ndarray,
    losses: Mapping[Move, np.ndarray],
    prior: np.ndarray | None = None,
) -> list[Step]:
    """The differences between neighbours among the measured options of each decision.

    Args:
        harms: of all options, as far as is known by now.
        prior: the same by the prior alone, if that is something else.
    """
    prior = harms if prior is None else prior
    steps = []
    for row in range(len(decisions)):
        found = {option: loss for (of, option), loss in losses.items() if of == row}
        # From what harms most to what harms least; of equals the first is the original's.
        order = sorted(found, key=lambda o: (-harms[row, o], -o))
        start = order.index(int(bases[row, row]))
        for place, (small, large) in enumerate(itertools.pairwise(order)):
            differences = found[small] - found[large]
            error = standard_error(differences)
            upward = place >= start and decisions[row].kind != "choice"  # which has no direction
            expected, harm = (h[row, small] - h[row, large] for h in (prior, harms))
            measured = float(differences.mean())
            steps.append(Step(row, small, large, upward, expected, harm, measured, error))
    return steps
