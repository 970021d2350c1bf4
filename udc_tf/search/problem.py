"""What is searched, apart from how."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from udc_tf import network_check
from udc_tf.cost.device_targets import OnDevice, is_fitted
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import BoundTarget, Flash, Target
from udc_tf.search.reachable import reachable
from udc_tf.search.space import SearchSpace

_TIGHT = 0.9  # of a budget of flash


@dataclasses.dataclass(frozen=True)
class SearchProblem:
    """The parts of a `SearchModel` that have no variables."""

    source: dict[str, Any] | None  # the original model, serialized; None if it cannot be
    plan: Plan
    space: SearchSpace
    targets: tuple[Target, ...]
    bound: tuple[BoundTarget, ...]
    compactable: Any  # (graph, channel groups) of the original, None for subclassed models
    allow_cpu: bool = False  # whether operators may be left to the CPU
    start: dict[str, float] | None = None  # decision -> value, where the search sets out

    def require_device(self) -> None:
        """Raises a `ValueError` if a device among the targets does not run all configurations.

        Vela is asked, which takes seconds; nothing is asked twice about networks of one structure.
        """
        if self.compactable is None:
            return
        graph, groups = self.compactable
        for accelerator in accelerators_of(self.targets):
            network_check.require_search(graph, groups, self.plan, accelerator, self.allow_cpu)

    @property
    def is_tight(self) -> bool:
        """Whether only Vela can say if the smallest configuration is inside of every target.

        What is predicted of working memory and cycles is rough, and of flash good to some percent.
        """
        return any(
            isinstance(target, OnDevice)
            or (isinstance(target, Flash) and reach.smallest > _TIGHT * target.budget)
            for target, reach in zip(
                self.targets, reachable(self.targets, self.bound, self.plan), strict=True
            )
        )


def require_targets(search: Any) -> None:
    """Raises a `ValueError` if a device does not run what a search may end with, or nothing fits.

    What Vela says meanwhile about sizes, the search knows from then on.
    """
    search.problem.require_device()
    if search.problem.compactable is not None:
        if not all(is_fitted(t) for t in search.targets if isinstance(t, Flash)):
            search.problem = network_check.with_first_sizes(search.problem)
        if search.problem.is_tight:
            network_check.require_smallest(search)


def accelerators_of(targets: Iterable[Target]) -> list[str]:
    """The devices that targets are for; a count of multiplications is for none."""
    named = (getattr(target, "accelerator", None) for target in targets)
    return sorted({name for name in named if name is not None})
