"""What a search changed, decision by decision: the prior, the evidence and the gradients apart."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from udc_tf.search import decisions
from udc_tf.search.repair import Budget

if TYPE_CHECKING:
    from udc_tf.search.model import SearchModel


@dataclasses.dataclass(frozen=True)
class DecisionChange:
    """The most likely option of one decision, on the way from the first guess to the end.

    Attributes:
        name: of the decision, as in `SearchModel.probabilities`.
        guess: by the prior alone, which knows the network's shape and the size of its weights.
        start: when what the data say had been measured; where it differs, they changed it.
        end: after the search.
        price: what `end` costs more than the smallest option, as a share of the budget, with all
            other decisions at their end.
    """

    name: str
    guess: float
    start: float
    end: float
    price: float


def changes_of(search: "SearchModel") -> list[DecisionChange]:
    """One entry for each decision, in the order of the plan."""
    state, plan = search.state, search.problem.plan
    valid = state.valid

    def likely(logits: np.ndarray) -> np.ndarray:
        return decisions.most_likely(decisions.log_probabilities(logits, valid)).numpy().argmax(-1)

    guess, start, end = (likely(v.numpy()) for v in (state.guess, state.start, state.logits))
    budget = Budget(search.problem.bound)
    after, whole = budget.after_moves(end), budget.ratio(end)
    changes = []
    for i, d in enumerate(plan.decisions):
        price = round(whole - float(after[i, : len(d.options)].min()), 4)
        first, then, last = (d.options[chosen[i]] for chosen in (guess, start, end))
        changes.append(DecisionChange(d.name, first, then, last, price))
    return changes


def table_of(changes: Sequence[DecisionChange]) -> str:
    """The changes as text.

    >>> print(table_of([DecisionChange("bits/conv", 4, 8, 8, 0.051)]))
    decision   guess  start  end  price
    bits/conv      4      8    8   5.1%
    """
    rows = [("decision", "guess", "start", "end", "price")]
    rows += [
        (c.name, f"{c.guess:.3g}", f"{c.start:.3g}", f"{c.end:.3g}", f"{c.price:.1%}")
        for c in changes
    ]
    sizes = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(n) if i == 0 else cell.rjust(n)
            for i, (cell, n) in enumerate(zip(row, sizes, strict=True))
        )
        for row in rows
    )
