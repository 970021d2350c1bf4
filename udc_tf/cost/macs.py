"""Multiply-accumulate operations for one input. Zeros are multiplied too."""

import dataclasses
from typing import Any

from udc_tf.cost.counts import CountMaps, Counts, column, total
from udc_tf.cost.priced_network import Plan


@dataclasses.dataclass(frozen=True)
class MacsCost:
    """Multiply-accumulates of a network whose image sizes are known."""

    def bind(self, plan: Plan) -> "BoundMacs":
        for layer in plan.layers:
            if layer.positions is None:
                raise ValueError(
                    "Multiplications can only be counted for known image sizes. Received: a model "
                    f"in which the output size of `{layer.name}` is unknown"
                )
        return BoundMacs(CountMaps(plan))


@dataclasses.dataclass(frozen=True)
class BoundMacs:
    """The multiply-accumulates of one network's configurations."""

    maps: CountMaps

    def cost(self, counts: Counts) -> Any:
        plan = self.maps.plan
        positions = column(plan.layers, lambda layer: layer.positions)
        per_channel = column(plan.fixed, lambda p: p.price.macs)
        layers = counts.present * positions * counts.weights
        return total(layers) + total(counts.part_present * per_channel * counts.part_channels)
