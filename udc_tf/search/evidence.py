"""What the data say about single decisions, and how much of it the harm of options should follow.

The harm that `start` knows beforehand is what options cost in networks in general. Which part of
*this* network matters only its loss can tell. So when the warm-up ends single decisions are moved
away from the most likely configuration, all on the same training images, so that differences of the
loss are far more exact than the loss itself.

Such differences are measured with shared weights, which serve no configuration as well as its own
would: between ordinary layers they are wrong by factors of two or three, where the prior is better.
But a layer that sees only noise, or one that must be exact, is off by factors of thirty and more,
which no prior can know. Hence evidence counts as a *factor* on the prior's harm, relative to what
is usual in this network, and small factors, or uncertain ones, are not listened to:

    x = log(measured / (prior * usual)),   x' = x * max(0, 1 - (margin / |x|)^4)

with a margin of log 9, or log 3 plus the relative standard error; the harm becomes
prior * exp(x'). First that is asked of all that was measured about a layer, together; then whether
one of its decisions differs from the layer, and of bits, kernel sizes and operators, whether one
step does from its decision. Before, it is asked of layers in a row, through which the same data
pass and nowhere else (`chains`): if one of them is of no use none is, while the errors of shared
weights are each layer's own. So of their mean a margin of log 9 / sqrt(layers) is enough, though
not of what matters more than usual, which may be one of them alone.

Later rounds ask again. What was believed is given up only if they contradict it by a margin; if
they go further the same way, what counts is how far they are from the prior, and not from what was
believed by then.

Steps above the base are another matter than those below. Weights that were trained around the base
miss at once what is taken from them, and training gets most of that back; they hardly gain by more
of anything, but what they gain is there to stay. So a gain is compared with a share of what is
usual for losses of all kinds, counts if it is significant and more than expected, and not if it is
less.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from udc_tf.cost.priced_network import Decision
from udc_tf.search.moves import GRADED, LASTING, NOTHING, SIGNIFICANT, Step

_MARGIN = np.log(3.0)
_MARGIN_OF_LOSSES = np.log(9.0)
_LARGEST = 5.0  # of x: a factor of 150
_OWN_UNITS = ("width", "bits", "sparsity")
# Kinds are measured in units of their own: the shared weights mind a missing channel more than a
# missing weight. So much harm of all kinds together counts beside that of a kind.
_BORROWED = 1.0


def listened_to(x: float, relative_error: float, least: float = _MARGIN_OF_LOSSES) -> float:
    """What of the logarithm of a factor is acted on.

    >>> listened_to(np.log(2.5), 0.0), round(listened_to(np.log(30), 0.2), 2)
    (0.0, 2.81)
    """
    margin, size = max(_MARGIN + relative_error, least), min(abs(x), _LARGEST)
    return float(np.sign(x) * size * (1 - (margin / size) ** 4)) if size > margin else 0.0


class Usual(NamedTuple):
    """The loss per unit of harm that is usual for a kind of decisions, and for all of them.

    What is lost is compared with its own kind. What is gained, and then takes bytes from all
    others, must count beside all of them: a network that hardly minds how many bits it has would
    else give more to each layer that minds a little.
    """

    of_kind: float
    of_all: float


@dataclasses.dataclass(frozen=True)
class Factor:
    """Measured over expected of some steps together, as a logarithm, and how exact that is.

    What is less than its standard error may be as much as that. Expected is what earlier rounds
    have found; `known` is the logarithm of that over the prior.
    """

    log: float
    relative_error: float
    known: float = 0.0

    @classmethod
    def of(cls, steps: Sequence[Step], usual: Mapping[int, Usual]) -> "Factor":
        """`usual`: by the identity of a step."""
        measured = sum(s.measured / usual[id(s)].of_kind for s in steps)
        errors = [s.error / usual[id(s)].of_kind for s in steps]
        error = np.sqrt(sum(e**2 for e in errors)) + NOTHING
        size, units = max(measured, error), sum(s.unit for s in steps)
        known = np.log(units / sum(s.weight for s in steps))
        log = np.log(size / units)
        if measured <= SIGNIFICANT * error:
            log = min(log, 0.0)  # by chance it may look like more than it is
        return cls(float(log), float(error / size), float(known))

    @classmethod
    def mean(cls, factors: Sequence["Factor"]) -> "Factor":
        error = np.sqrt(sum(f.relative_error**2 for f in factors)) / len(factors)
        log, known = (float(np.mean([getattr(f, n) for f in factors])) for n in ("log", "known"))
        return cls(log, float(error), known)

    def beyond(self, believed: float, least: float = _MARGIN_OF_LOSSES) -> float:
        """The factor to act on, if one of `believed` is acted on already."""
        more = listened_to(self.log - believed, self.relative_error, least)
        found = float(np.clip(believed + more, -_LARGEST, _LARGEST))
        from_prior = listened_to(self.log + self.known, self.relative_error, least)
        so_far = found + self.known
        goes_further = so_far * from_prior > 0 and abs(from_prior) > abs(so_far)
        return from_prior - self.known if goes_further else found


def usual_losses(decisions: Sequence[Decision], steps: Sequence[Step]) -> dict[int, Usual]:
    """For each step the loss per unit of the prior's harm that is usual for its kind.

    It is what is usual in the layers that matter, those with any significant step, and there all
    steps count: where bits matter in none but the classifier, that is no reason to take them away
    from all others. Operators and kernel sizes are few, and of them one may matter and the next
    not: for them it is what is usual for all else. Where nothing else is searched, their gains tell
    as well. Harm is the prior's, and not what earlier rounds made of it: or one decision that was
    found to matter would say in all later rounds what is usual.
    """
    below = [s for s in steps if not s.upward]
    kinds = {decisions[s.decision].kind for s in below} & set(_OWN_UNITS)
    counted = below if kinds else steps
    matter = {decisions[s.decision].subject for s in counted if s.is_significant}
    counted = [s for s in counted if decisions[s.decision].subject in matter] or counted
    overall = _middle(counted)
    usual = {}
    for kind in kinds:
        own = [s for s in counted if decisions[s.decision].kind == kind]
        weight = sum(s.weight for s in own)
        of_kind = weight * _middle(own) if own else 0.0
        usual[kind] = float(np.exp((of_kind + _BORROWED * overall) / (weight + _BORROWED)))
    of_all = float(np.exp(overall))
    return {id(s): Usual(usual.get(decisions[s.decision].kind, of_all), of_all) for s in steps}


def _middle(steps: Sequence[Step]) -> float:
    """The logarithm of the loss per unit of harm that half of all harm has at least.

    One part that matters more than all others does not shift it.
    """
    logs = np.log([s.rate for s in steps])
    order = np.argsort(-logs)
    units = np.cumsum([steps[i].weight for i in order]) / sum(s.weight for s in steps)
    # From two sides, which differ where one half ends just there: of two, it is between them.
    sides = [np.searchsorted(units, half) for half in (0.5 - NOTHING, 0.5 + NOTHING)]
    return float(np.mean(logs[order[sides]]))


def updated_harms(
    decisions: Sequence[Decision],
    harms: np.ndarray,
    steps: Sequence[Step],
    chains: Mapping[str, int] | None = None,
    contents: Mapping[str, Mapping[int, Sequence[str]]] | None = None,
) -> np.ndarray:
    """The harms that prior and measured differences have together, [decisions, options].

    Without a significant difference anywhere they stay as they are; so they do if only one decision
    has any, which would then itself be what is usual.

    Args:
        chains: as of `chains.chains_of`.
        contents: as of `chains.contents_of`.
    """
    significant = [s for s in steps if s.is_significant]
    if all(s.upward for s in significant) or len({s.decision for s in significant}) < 2:
        return harms
    usual = usual_losses(decisions, steps)
    layers: dict[str, list[Step]] = {}
    for step in steps:
        layers.setdefault(decisions[step.decision].subject, []).append(step)
    updated = harms.copy()
    of_chains = _of_chains(layers, usual, chains or {})
    of_layers = {
        subject: _beyond(_downward(found, usual), of_chains.get(subject, 0.0))
        for subject, found in layers.items()
    }
    for subject, found in layers.items():
        for row, of_row in itertools.groupby(found, key=lambda s: s.decision):
            of_decision = list(of_row)
            graded = decisions[row].kind in GRADED
            factors = factors_of(of_decision, usual, of_layers[subject], graded)
            if decisions[row].kind == "choice":
                idle = _of_contents((contents or {}).get(subject, {}), of_layers)
                updated[row] = _of_operators(harms[row], of_decision, factors, usual, idle)
            else:
                options = len(decisions[row].options)
                updated[row, :options] = _of_ordered(harms[row, :options], of_decision, factors)
    return updated


def _of_chains(
    layers: Mapping[str, list[Step]], usual: Mapping[int, Usual], chains: Mapping[str, int]
) -> dict[str, float]:
    """What is believed of each layer because of those it is in a row with."""
    members: dict[int, dict[str, Factor]] = {}
    for subject, steps in layers.items():
        factor = _downward(steps, usual)
        if factor is not None and subject in chains:
            members.setdefault(chains[subject], {})[subject] = factor
    found: dict[str, float] = {}
    for of_chain in members.values():
        least = max(_MARGIN, _MARGIN_OF_LOSSES / np.sqrt(len(of_chain)))
        mean = Factor.mean(list(of_chain.values())).beyond(0.0, least)
        found |= dict.fromkeys(of_chain, min(mean, 0.0))
    return found


def _of_contents(
    branches: Mapping[int, Sequence[str]], of_layers: Mapping[str, float]
) -> dict[int, float]:
    """What is believed of each branch because of the layers in it, where none of them matters."""
    found = {}
    for branch, names in branches.items():
        factors = [of_layers[name] for name in names if name in of_layers]
        if factors and max(factors) < 0:
            found[branch] = max(factors)
    return found


def factors_of(
    steps: list[Step], usual: Mapping[int, Usual], of_layer: float, graded: bool
) -> list[float]:
    """By what each step's harm is multiplied, in a layer of whose harms as much is believed."""
    of_decision = _beyond(_downward(steps, usual), of_layer)
    return [
        _of_gain(s, usual, of_decision)
        if s.upward
        else float(np.exp(of_decision))
        if graded
        else _of_loss(s, usual, of_decision)
        for s in steps
    ]


def _of_loss(step: Step, usual: Mapping[int, Usual], believed: float) -> float:
    return float(np.exp(Factor.of([step], usual).beyond(believed)))


def _of_gain(step: Step, usual: Mapping[int, Usual], believed: float) -> float:
    """It is what the gain says, in units, even where the prior expects next to nothing.

    That a layer misses what is taken from it does not say that it would gain by more.
    """
    believed = min(believed, 0.0)
    factor = float(np.exp(believed))
    if not step.is_significant:
        return factor
    loss = LASTING * max(usual[id(step)])
    lasting = {id(step): Usual(loss, loss)}
    found = float(np.exp(Factor.of([step], lasting).beyond(believed, _MARGIN)))
    if found <= factor:
        return factor
    return max(factor, 1 + step.unit / max(step.harm, NOTHING) * (found - 1))


def _downward(steps: Sequence[Step], usual: Mapping[int, Usual]) -> Factor | None:
    below = [s for s in steps if not s.upward]
    return Factor.of(below, usual) if below else None


def _beyond(factor: Factor | None, believed: float) -> float:
    return believed if factor is None else factor.beyond(believed)


def _of_ordered(harms: np.ndarray, steps: list[Step], factors: list[float]) -> np.ndarray:
    """Each stretch between measured options times its factor; beyond them as the nearest."""
    last = len(harms) - 1
    by_option = np.empty(last)  # between option k and k + 1
    for number, (step, factor) in enumerate(zip(steps, factors, strict=True)):
        begin = 0 if number == 0 else step.small
        end = last if number == len(steps) - 1 else step.large
        by_option[begin:end] = factor
    drops = (harms[:-1] - harms[1:]) * by_option
    return harms[-1] + np.append(np.cumsum(drops[::-1])[::-1], 0.0)


def _of_operators(
    harms: np.ndarray,
    steps: list[Step],
    factors: list[float],
    usual: Mapping[int, Usual],
    idle: Mapping[int, float],
) -> np.ndarray:
    """From the best by the prior upwards; an operator that does better may take its place.

    A branch out of which everything can be taken is not worth more than one that has less.
    """
    updated, believed = harms.copy(), 0.0
    for step, factor in reversed(list(zip(steps, factors, strict=True))):
        believed = min(believed, idle.get(step.large, 0.0))
        if step.measured < -SIGNIFICANT * step.error:
            better = dataclasses.replace(step, measured=-step.measured)
            more = -step.unit * np.exp(Factor.of([better], {id(better): usual[id(step)]}).beyond(0))
        else:
            more = max(0.0, step.harm + step.unit * (factor - 1)) * np.exp(believed)
        updated[step.small] = updated[step.large] + more
    return updated
