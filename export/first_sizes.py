"""What the files that are compiled before the first step say about sizes.

The largest and the smallest network are compiled anyway, to know whether the device runs them. What
these files take besides weights corrects what is predicted of overheads where that is too low:
commands depend on the shapes of tensors in ways that no formula here knows. Where it is too high,
budgets hold as it is.
"""

import dataclasses

import numpy as np

from udc_tf.cost.device_targets import is_fitted
from udc_tf.cost.flash import FlashCost, SizeModel
from udc_tf.cost.targets import Flash, Target
from udc_tf.export import device_check
from udc_tf.export.size_coefficients import Measurement, features_of, fit_overheads
from udc_tf.search.problem import SearchProblem

_MOST_BYTES_OF_A_WEIGHT = 1.0  # of 8 bits and a bell, which take 7 bits on average


def with_first_sizes(problem: SearchProblem) -> SearchProblem:
    """The same problem, with targets of flash corrected that nothing was measured for."""

    def taught(target: Target) -> Target:
        if not isinstance(target, Flash) or is_fitted(target):
            return target
        rows = _measured(problem, target.accelerator)
        low = any(row.predicted_overhead(SizeModel()) < row.overhead for row in rows)
        return dataclasses.replace(target, size_model=fit_overheads(rows)) if low else target

    targets = tuple(taught(target) for target in problem.targets)
    if targets == problem.targets:
        return problem
    bound = tuple(target.bind(problem.plan) for target in targets)
    return dataclasses.replace(problem, targets=targets, bound=bound)


def _measured(problem: SearchProblem, accelerator: str) -> list[Measurement]:
    (graph, groups), plan = problem.compactable, problem.plan
    bound = FlashCost(accelerator).bind(plan)
    files = device_check.files_of_search(graph, groups, plan, accelerator)
    rows = []
    for chosen, file in zip(device_check.options_of_configurations(plan), files, strict=True):
        coded = bound.maps.counts(bound.maps.one_hot(chosen)).coded_weights
        # Of a kernel that Vela cuts into several operations it counts the weights several times.
        stored = np.minimum(file.weight_bytes, _MOST_BYTES_OF_A_WEIGHT * coded)
        measured = features_of(bound, chosen)
        rows.append(
            Measurement(
                tuple(map(int, chosen)),
                *measured,
                weight_bytes=round(stored.sum()),
                flash_bytes=file.flash_bytes,
            )
        )
    return rows
