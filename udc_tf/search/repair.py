"""From the most likely configuration to the most likely one inside the budget.

A search leaves the argmax a few percent off its budget, on either side. Decisions are changed,
those that cost least probability first, until every target holds and the budget is used.

Where the search knows the harm of the options, that decides instead: a probability has the price of
size in it, by which all that is nearly worthless is nearly as likely, and would fill the room.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from udc_tf.cost.counts import CountMaps, Counts
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import Bound, BoundTarget

_ENOUGH = 0.99  # of the binding budget: what the repair aims at
_ROUNDS = 60
_TRIED = 24  # moves that are followed up with a second one
_NO_GAIN = 1e-3  # of harm, which is about one per quarter of a layer's channels


@dataclasses.dataclass(frozen=True)
class Budget:
    """All targets as one number: the largest share of its budget that any of them needs."""

    targets: tuple[BoundTarget, ...]

    @property
    def tangled(self) -> bool:
        """Whether room for one change may take several others: peaks, or more than one target."""
        return len(self.targets) > 1 or any(_is_peak(t) for t in self.targets)

    def _largest(self, counts_of: Callable[[CountMaps], Counts]) -> np.ndarray:
        return np.max([t.cost(counts_of(t.maps)) / t.budget for t in self.targets], axis=0)

    def ratio(self, chosen: np.ndarray) -> float:
        return float(self._largest(lambda m: m.counts(m.one_hot(chosen))))

    def after_moves(self, chosen: np.ndarray) -> np.ndarray:
        """[decisions, options]"""
        return self._largest(lambda m: m.counts_of_moves(chosen))

    def uses_after_moves(self, chosen: np.ndarray) -> np.ndarray:
        """The shares of all targets together, [decisions, options]."""
        shares = [t.cost(t.maps.counts_of_moves(chosen)) / t.budget for t in self.targets]
        return np.sum(shares, axis=0)

    def gains(self, chosen: np.ndarray) -> np.ndarray:
        """How much of what is too much each single change takes away, [decisions, options].

        Of a cost that is a peak over several steps every step counts that is over: two peaks of one
        height come down one after the other. Nobody gains by going far below a budget.
        """
        found: Any = 0.0
        for target in self.targets:
            maps = target.maps
            now = _excess(target, maps.counts(maps.one_hot(chosen)))
            found = found + now - _excess(target, maps.counts_of_moves(chosen))
        return found

    def after_pairs(self, chosen: np.ndarray, first: int, second: int) -> np.ndarray:
        return self._largest(lambda m: m.counts_of_pairs(chosen, first, second))


def _is_peak(target: BoundTarget) -> bool:
    return isinstance(target, Bound) and target.is_peak


def _excess(target: BoundTarget, counts: Counts) -> np.ndarray:
    """By which shares of its budget a target, or each peak of it, is above what is enough."""
    peaks = getattr(target, "peaks", None)
    costs = peaks(counts) if peaks else target.cost(counts)[..., None]
    return np.maximum(costs / target.budget - _ENOUGH, 0.0).sum(-1)


def extreme(target: BoundTarget, plan: Plan, smallest: bool) -> np.ndarray:
    """The configuration with the smallest or the largest cost.

    Costs rise with width and kernel, and add up over layers, so that it is enough to go to the best
    option decision by decision; only bits and non-zeros of one layer must be tried together.
    """
    budget, better = Budget((target,)), np.argmin if smallest else np.argmax
    sizes = [len(d.options) for d in plan.decisions]
    chosen = np.asarray([0 if smallest else n - 1 for n in sizes])
    pairs = [
        (i, plan.decision_index("sparsity", d.subject))
        for i, d in enumerate(plan.decisions)
        if d.kind == "bits"
    ]
    for _ in range(3):
        before = chosen.copy()
        moves = budget.after_moves(chosen)
        for i, d in enumerate(plan.decisions):
            if d.kind in ("bits", "sparsity"):
                chosen[i] = better(moves[i, : sizes[i]])
        for i, d in enumerate(plan.decisions):
            if d.kind == "choice":
                chosen[i] = better(budget.after_moves(chosen)[i, : sizes[i]])
        for first, second in pairs:
            if second is not None:
                both = budget.after_pairs(chosen, first, second)[: sizes[first], : sizes[second]]
                chosen[first], chosen[second] = np.unravel_index(better(both), both.shape)
        if np.array_equal(before, chosen):
            break
    return chosen


def smallest_of(plan: Plan, budget: Budget) -> np.ndarray:
    """Of the configurations that are smallest by one target, the one nearest to all of them."""
    return min((extreme(t, plan, True) for t in budget.targets), key=budget.ratio)


def preferences(log_pi: np.ndarray, plan: Plan) -> np.ndarray:
    """What a repair should think of each option, from what the search thinks of it.

    By the end of a search the probabilities of unlikely options are noise, and taken literally they
    would send a classifier from all of its weights to a hundredth of them. Widths, bits, non-zeros
    and kernel sizes are ordered: an option next to a likely one is hardly worse, one far from it
    has never been tried with these weights. So half of the score is the logarithm of

        sum_j pi_j exp(-|k - j|)

    and half is minus the number of steps from the most likely option, which stays the best.
    """
    scores = log_pi.copy()
    for i, decision in enumerate(plan.decisions):
        if decision.kind == "choice":
            continue
        count = len(decision.options)
        row, numbers = log_pi[i, :count], np.arange(count)
        steps = np.abs(numbers[:, None] - numbers[None])
        spread = np.logaddexp.reduce(row[None] - steps, axis=1)
        scores[i, :count] = (spread - steps[row.argmax()]) / 2
    return scores


def repair(
    log_pi: np.ndarray,
    valid: np.ndarray,
    budget: Budget,
    smallest: np.ndarray,
    worth: np.ndarray | None = None,
) -> np.ndarray:
    """The most likely choice of options for which `budget.ratio` is at most 1, and not far below.

    Args:
        log_pi: [decisions, options].
        valid: which entries are options.
        smallest: a configuration inside the budget, to start from if nothing else leads there.
        worth: of the options, whatever they cost, [decisions, options]: what changes then lose, or
            gain, is this; and room that nothing of worth fits into is left.
    """
    log_pi = np.where(valid, log_pi, -np.inf)
    likely = log_pi.argmax(axis=1)
    if worth is None:
        chosen = _shrink(likely, log_pi, budget)
        chosen = _fill(smallest.copy() if chosen is None else chosen, log_pi, budget)
        return _polish(chosen, log_pi, budget)
    worth = np.where(valid, worth, -np.inf)
    chosen = _shrink(likely, worth, budget)
    chosen = _fill_with_worth(smallest.copy() if chosen is None else chosen, worth, budget)
    chosen = _exchange(chosen, worth, budget)
    return _make_room(chosen, worth, budget) if budget.tangled else chosen


def _losses(chosen: np.ndarray, log_pi: np.ndarray) -> np.ndarray:
    """What probability each move costs, in nats; moves that are none cost infinitely much."""
    losses = log_pi[np.arange(len(chosen)), chosen][:, None] - log_pi
    losses[np.arange(len(chosen)), chosen] = np.inf
    return losses


def _move(chosen: np.ndarray, flat_index: int | np.integer, options: int) -> np.ndarray:
    moved = chosen.copy()
    moved[flat_index // options] = flat_index % options
    return moved


def _shrink(
    chosen: np.ndarray, log_pi: np.ndarray, budget: Budget, most: float = np.inf
) -> np.ndarray | None:
    """Down into the budget; None if that loses more than `most`, or if nothing leads there."""
    options, rows, before = log_pi.shape[1], np.arange(len(chosen)), chosen
    for _ in range(len(chosen) * options):
        if (log_pi[rows, before] - log_pi[rows, chosen]).sum() > most:
            return None
        if budget.ratio(chosen) <= 1:
            return chosen
        gain = budget.gains(chosen)
        losses = np.maximum(_losses(chosen, log_pi), 1e-6)
        price = np.where(
            (gain > 1e-9) & np.isfinite(losses), losses / np.maximum(gain, 1e-9), np.inf
        )
        if not np.isfinite(price).any():
            return None
        chosen = _move(chosen, price.argmin(), options)
    return None


def _fill(chosen: np.ndarray, log_pi: np.ndarray, budget: Budget) -> np.ndarray:
    options = log_pi.shape[1]
    for _ in range(len(chosen) * options):
        ratio = budget.ratio(chosen)
        if ratio >= _ENOUGH and not budget.tangled:
            return chosen
        after, losses = budget.after_moves(chosen), _losses(chosen, log_pi)
        # Where one target is nearly used up, the others may have room that is worth having.
        uses = budget.uses_after_moves(chosen)
        gain = np.where(after <= 1, uses - uses[0, chosen[0]], 0.0)
        usable = (gain > 1e-6) & np.isfinite(losses)
        if usable.any():
            price = np.where(usable, np.maximum(losses, 1e-6) / np.maximum(gain, 1e-9), np.inf)
            chosen = _move(chosen, price.argmin(), options)
            continue
        better = _fill_by_two(chosen, log_pi, budget, ratio) if ratio < _ENOUGH else None
        if better is None:
            return chosen
        chosen = better
    return chosen


def _fill_by_two(
    chosen: np.ndarray, log_pi: np.ndarray, budget: Budget, ratio: float
) -> np.ndarray | None:
    """Up beyond the budget, then down again, where that ends above where it began."""
    options = log_pi.shape[1]
    after, losses = budget.after_moves(chosen), _losses(chosen, log_pi)
    ups = np.where((after > 1) & np.isfinite(losses), after, np.inf)
    best, best_ratio = None, ratio + 1e-6
    for up in np.argsort(ups, axis=None)[:_TRIED]:
        if not np.isfinite(ups.flat[up]):
            break
        moved = _move(chosen, up, options)
        down = budget.after_moves(moved)
        down = np.where((down <= 1) & np.isfinite(log_pi), down, -np.inf)
        if down.max() > best_ratio:
            best, best_ratio = _move(moved, down.argmax(), options), down.max()
    return best


def _polish(chosen: np.ndarray, log_pi: np.ndarray, budget: Budget) -> np.ndarray:
    """Takes back changes, alone or against another change, where the budget allows it."""
    options = log_pi.shape[1]
    for _ in range(_ROUNDS):
        floor = min(_ENOUGH, budget.ratio(chosen)) - 1e-9
        used = budget.uses_after_moves(chosen)[0, chosen[0]] if budget.tangled else 0.0
        best, best_gain = None, 1e-9
        gains = -_losses(chosen, log_pi)
        for first in np.argsort(-gains, axis=None)[:_TRIED]:
            if gains.flat[first] <= 1e-9:
                break
            moved = _move(chosen, first, options)
            after, losses = budget.after_moves(moved), _losses(moved, log_pi)
            losses[np.arange(len(moved)), moved] = 0.0  # no second move
            losses[first // options] = np.where(np.arange(options) == first % options, 0.0, np.inf)
            losses = np.where((after <= 1) & (after >= floor), losses, np.inf)
            if used:  # what the other targets use counts as well
                enough = budget.uses_after_moves(moved) >= _ENOUGH * used
                losses = np.where(enough, losses, np.inf)
            gain = gains.flat[first] - losses.min()
            if gain > best_gain:
                best, best_gain = _move(moved, losses.argmin(), options), gain
        if best is None:
            break
        chosen = best
    return chosen


def _fill_with_worth(chosen: np.ndarray, worth: np.ndarray, budget: Budget) -> np.ndarray:
    """What gains most for its size, as long as something fits."""
    options = worth.shape[1]
    for _ in range(len(chosen) * options):
        more = budget.after_moves(chosen) - budget.ratio(chosen)
        gains = -_losses(chosen, worth)
        fits = (budget.ratio(chosen) + more <= 1) & (gains > _NO_GAIN)
        if not fits.any():
            break
        chosen = _move(chosen, np.where(fits, gains / np.maximum(more, 1e-6), 0).argmax(), options)
    return chosen


def _exchange(chosen: np.ndarray, worth: np.ndarray, budget: Budget) -> np.ndarray:
    """One change for another, where both together gain and the budget allows it."""
    options = worth.shape[1]
    for _ in range(_ROUNDS):
        after, gains = budget.after_moves(chosen), -_losses(chosen, worth)
        left = gains - _least_loss(budget.ratio(chosen) - after, -gains, after - 1)
        best, best_gain = None, _NO_GAIN
        for first in np.argsort(-left, axis=None)[:_TRIED]:
            if left.flat[first] <= best_gain:
                break
            moved = _move(chosen, first, options)
            losses = _losses(moved, worth)
            losses[first // options] = np.inf
            losses = np.where(budget.after_moves(moved) <= 1, losses, np.inf)
            gain = gains.flat[first] - losses.min()
            if gain > best_gain:
                best, best_gain = _move(moved, losses.argmin(), options), gain
        if best is None:
            break
        chosen = best
    return chosen


def _make_room(chosen: np.ndarray, worth: np.ndarray, budget: Budget) -> np.ndarray:
    """One change with all that has to give way to it, as long as that gains.

    More channels, say, where two layers' weights take the memory that these need.
    """
    options, rows = worth.shape[1], np.arange(len(worth))
    for _ in range(_ROUNDS):
        gains = -_losses(chosen, worth)
        steps = np.where(gains > _NO_GAIN, gains, np.inf)  # the next option of each decision
        least = steps.min(axis=1)
        found = None
        for row in np.argsort(-np.where(np.isfinite(least), least, -np.inf))[:_TRIED]:
            if not np.isfinite(least[row]):
                break
            moved = _move(chosen, row * options + steps[row].argmin(), options)
            held = worth.copy()
            held[row, np.arange(options) != moved[row]] = -np.inf
            found = _shrink(moved, held, budget, least[row] - _NO_GAIN)
            if found is not None and worth[rows, found].sum() > worth[rows, chosen].sum():
                break
            found = None
        if found is None:
            break
        chosen = _exchange(_fill_with_worth(found, worth, budget), worth, budget)
    return chosen


def _least_loss(savings: np.ndarray, losses: np.ndarray, needs: np.ndarray) -> np.ndarray:
    """For each need, the least that a move which saves as much loses; infinite if none does.

    >>> _least_loss(np.array([0.1, 0.3]), np.array([1.0, 5.0]), np.array([0.05, 0.2, 0.4]))
    array([ 1.,  5., inf])
    """
    order = np.argsort(-savings, axis=None)
    cheapest = np.minimum.accumulate(losses.ravel()[order])
    many = np.searchsorted(-savings.ravel()[order], -needs, side="right")
    return np.where(many > 0, cheapest[np.maximum(many - 1, 0)], np.inf)
