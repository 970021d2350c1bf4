"""What is searched, apart from how."""

import dataclasses
from typing import Any

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
