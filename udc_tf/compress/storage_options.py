"""What a layer can become: pairs of bits and of the share of weights that stay."""

import dataclasses

from udc_tf.cost.priced_network import Plan
from udc_tf.quantize.quantizers import FLOAT_BITS


@dataclasses.dataclass(frozen=True)
class Option:
    """One way to store a layer's weights."""

    bits: int
    nonzeros: float

    @property
    def deployed_bits(self) -> int:
        return min(self.bits, 8)


def options_of(plan: Plan) -> dict[str, tuple[Option, ...]]:
    """The options of every layer with a kernel; of one that is left alone, a single one."""
    return {
        layer.name: tuple(
            Option(int(bits), float(share))
            for bits in layer.options.bits or (FLOAT_BITS,)
            for share in layer.options.sparsities or (1.0,)
        )
        for layer in plan.layers
    }
