"""What is searched, apart from how."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from udc_tf import network_check
from udc_tf.cost.device_targets import OnDevice
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.targets import BoundTarget, Target
from udc_tf.search.space import SearchSpace


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

    def require_device(self, search: Any = None) -> None:
        """Raises a `ValueError` if a device among the targets does not run all configurations.

        Vela is asked, which takes seconds; nothing is asked twice about networks of one structure.
        With a search it is asked, too, whether the smallest configuration keeps working memory and
        cycles: until then they were only predicted.
        """
        if self.compactable is None:
            return
        graph, groups = self.compactable
        for accelerator in accelerators_of(self.targets):
            network_check.require_search(graph, groups, self.plan, accelerator, self.allow_cpu)
        if search is not None and any(isinstance(t, OnDevice) for t in self.targets):
            network_check.require_smallest(search)


def accelerators_of(targets: Iterable[Target]) -> list[str]:
    """The devices that targets are for; a count of multiplications is for none."""
    named = (getattr(target, "accelerator", None) for target in targets)
    return sorted({name for name in named if name is not None})
