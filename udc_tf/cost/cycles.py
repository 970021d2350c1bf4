"""Cycles of one inference as Vela estimates them: it says itself that they are an estimate."""

import dataclasses
from typing import Any

from udc_tf.cost.counts import CountMaps, Counts, total
from udc_tf.cost.device_model import DeviceModel
from udc_tf.cost.priced_network import Plan
from udc_tf.cost.steps import StepCosts


@dataclasses.dataclass(frozen=True)
class CyclesCost:
    """Cycles on an accelerator, from multiplications, weight decoding and traffic, step by step."""

    accelerator: str
    model: DeviceModel

    def bind(self, plan: Plan) -> "BoundCycles":
        return BoundCycles(StepCosts(plan, self.accelerator, self.model))


@dataclasses.dataclass(frozen=True)
class BoundCycles:
    """The cycles of one network's configurations."""

    steps: StepCosts

    @property
    def maps(self) -> CountMaps:
        return self.steps.maps

    def cost(self, counts: Counts) -> Any:
        return total(self.steps.cycles(counts)) + self.steps.model.rest
