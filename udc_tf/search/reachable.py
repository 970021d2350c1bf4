"""How small and how large the configurations of a search can be."""

import dataclasses
from collections.abc import Sequence

from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import BoundTarget, Target
from udc_tf.search.repair import Budget, extreme


@dataclasses.dataclass(frozen=True)
class Reachable:
    """The smallest and the largest cost of any configuration, in the unit of the target's budget.

    `str()` of it is for people: "from 2,048 bytes to 9,216 bytes".
    """

    target: Target
    smallest: float
    largest: float

    def __str__(self) -> str:
        return f"from {self.target.describe(self.smallest)} to {self.target.describe(self.largest)}"


def reachable(
    targets: Sequence[Target], bound: Sequence[BoundTarget], plan: Plan
) -> tuple[Reachable, ...]:
    """One per target; `bound` are the targets, bound to the plan."""
    return tuple(
        Reachable(target, *(_cost_of_extreme(b, plan, smallest) for smallest in (True, False)))
        for target, b in zip(targets, bound, strict=True)
    )


def _cost_of_extreme(target: BoundTarget, plan: Plan, smallest: bool) -> float:
    return Budget((target,)).ratio(extreme(target, plan, smallest)) * target.budget
