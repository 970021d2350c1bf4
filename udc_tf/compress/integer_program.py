"""The options that harm least inside all budgets: an integer program.

    minimise   sum of harm[layer, option]
    subject to sum of cost[layer, option] <= limit, for every budget; one option per layer

HiGHS solves it, by way of scipy, and proves how far from the optimum it may be.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import optimize, sparse

_SECONDS = 20.0
_GAP = 1e-4


class OutOfReachError(ValueError):
    """No choice of options is inside the limits."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """One option per layer.

    Attributes:
        options: their numbers.
        harm: of all of them.
        bound: the least that any choice can have.
    """

    options: tuple[int, ...]
    harm: float
    bound: float


def choose(
    harms: Sequence[np.ndarray], costs: Sequence[Sequence[np.ndarray]], limits: Sequence[float]
) -> Choice:
    """The best choice.

    Args:
        harms: of the options of each layer.
        costs: for each budget, the same of costs.
        limits: for each budget, what the layers may cost together.

    Raises:
        OutOfReachError: even the cheapest options are too much for a budget.

    Example:

    >>> harms = [np.array([3.0, 0.0]), np.array([1.0, 0.0])]
    >>> sizes = [np.array([1.0, 4.0]), np.array([2.0, 4.0])]
    >>> choose(harms, [sizes], [6.0]).options
    (1, 0)
    """
    for table, limit in zip(costs, limits, strict=True):
        smallest = sum(float(row.min()) for row in table)
        if smallest > limit:
            raise OutOfReachError(f"The least is {smallest:,.0f}. Received: {limit:,.0f}")
    best = [np.concatenate(table) for table in costs]
    flat = np.concatenate(harms)
    layers = np.repeat(np.arange(len(harms)), [len(row) for row in harms])
    positions = np.arange(len(flat))
    ones = sparse.csr_array((np.ones(len(flat)), (layers, positions)))
    constraints = [optimize.LinearConstraint(ones, 1, 1)]
    for row, limit in zip(best, limits, strict=True):
        scale = max(abs(float(limit)), 1.0)
        constraints.append(optimize.LinearConstraint(row[None] / scale, -np.inf, limit / scale))
    # HiGHS has absolute tolerances: harms are brought to where they do not matter.
    scale = max(float(np.median([np.median(row) for row in harms])), 1e-12)
    found = optimize.milp(
        np.minimum(flat / scale, 1e6),
        integrality=np.ones(len(flat)),
        bounds=optimize.Bounds(0, 1),
        constraints=constraints,
        options={"time_limit": _SECONDS, "mip_rel_gap": _GAP},
    )
    if found.x is None:
        raise OutOfReachError(f"No choice is inside all limits at once. Received: {list(limits)}")
    options = [int(found.x[layers == i].argmax()) for i in range(len(harms))]
    harm = float(sum(row[o] for row, o in zip(harms, options, strict=True)))
    bound = harm if found.mip_dual_bound is None else float(found.mip_dual_bound) * scale
    return Choice(tuple(options), harm, min(bound, harm))
