"""What is known about a network on a device, besides what formulas say: fitted by compilations."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from udc_tf.cost.flash import SizeModel


@dataclasses.dataclass(frozen=True)
class DeviceModel:
    """Coefficients of working memory and cycles. `udc_tf.export.fit_size_model` fits them.

    Attributes:
        size: of the encoded weights, which are read and buffered.
        steps: operator -> factor and offset, in cycles, of what the formula gives it.
        rest: cycles of what is no step by itself, such as a softmax.
        sram: what Vela plans over what the tensors and buffers say.
        fitted: whether this was measured; the defaults are for orders of magnitude.
    """

    size: SizeModel = dataclasses.field(default_factory=SizeModel)
    steps: Mapping[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    rest: float = 0.0
    sram: float = 1.0
    fitted: bool = False

    def to_dict(self) -> dict[str, Any]:
        steps = {name: list(values) for name, values in self.steps.items()}
        return {
            "size": self.size.to_dict(),
            "steps": steps,
            "rest": self.rest,
            "sram": self.sram,
            "fitted": self.fitted,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "DeviceModel":
        steps = {n: (float(v[0]), float(v[1])) for n, v in values.get("steps", {}).items()}
        size = SizeModel.from_dict(values.get("size", {}))
        return cls(**{**values, "size": size, "steps": steps})
