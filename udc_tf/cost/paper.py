"""The size as the UDC paper prints it, b + H(s) bits per weight, for comparison with it."""

import dataclasses
from typing import Any

from udc_tf.cost.counts import CountMaps, Counts, column, total
from udc_tf.cost.priced_network import Plan
from udc_tf.quantize.quantizers import FLOAT_BITS


@dataclasses.dataclass(frozen=True)
class PaperCost:
    """The paper's formula. It never rewards sparsity."""

    def bind(self, plan: Plan) -> "BoundPaperSize":
        return BoundPaperSize(CountMaps(plan, unsearched_bits=FLOAT_BITS))


@dataclasses.dataclass(frozen=True)
class BoundPaperSize:
    """The paper's size of one network's configurations."""

    maps: CountMaps

    def cost(self, counts: Counts) -> Any:
        parts = column(self.maps.plan.fixed, lambda p: p.constants * FLOAT_BITS / 8)
        layers = counts.present * counts.weights * (counts.bits + counts.entropy) / 8
        return total(layers) + total(counts.part_present * parts)
